// Functions of newer glibcs that headers call there, by means that glibc 2.28 has: wheels/old_symbols.py.
#define _GNU_SOURCE
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

// Before 2.33 these four were inline functions around others, which say which `struct stat` they mean.
#if defined(__x86_64__)
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif
extern int __xstat(int version, const char *path, struct stat *found);
extern int __lxstat(int version, const char *path, struct stat *found);
extern int __fxstat(int version, int file, struct stat *found);
extern int __fxstatat(int version, int folder, const char *path, struct stat *found, int flags);

#define OURS __attribute__((visibility("hidden")))

OURS int stat(const char *path, struct stat *found) { return __xstat(STAT_VERSION, path, found); }

OURS int lstat(const char *path, struct stat *found) { return __lxstat(STAT_VERSION, path, found); }

OURS int fstat(int file, struct stat *found) { return __fxstat(STAT_VERSION, file, found); }

OURS int fstatat(int folder, const char *path, struct stat *found, int flags) {
    return __fxstatat(STAT_VERSION, folder, path, found, flags);
}

// 2.29
OURS int getcpu(unsigned *cpu, unsigned *node) { return (int)syscall(SYS_getcpu, cpu, node, (void *)0); }

// 2.32: libstdc++'s headers leave out atomic instructions where it is not 0.
OURS char __libc_single_threaded = 0;
