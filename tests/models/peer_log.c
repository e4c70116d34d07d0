/* Preloaded into llama.cpp's tools: has their log written before they end. They leave that to a thread, which does not
 * come to its last lines where the machine is busy (common/log.cpp, common_log_main). The names are those of C++. */
struct common_log;
struct common_log *main_log(void) __asm__("_Z15common_log_mainv") __attribute__((weak));
void pause_log(struct common_log *log) __asm__("_Z16common_log_pauseP10common_log") __attribute__((weak));

__attribute__((destructor)) static void write_all(void) {
    if (main_log && pause_log) {
        pause_log(main_log());
    }
}
