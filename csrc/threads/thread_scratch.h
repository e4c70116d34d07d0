/* Memory of a thread, kept between the operations that it computes. */
#ifndef OE_THREAD_SCRATCH_H
#define OE_THREAD_SCRATCH_H

#include <stddef.h>

/* At least `size` bytes, aligned to 64, with any content: the same memory at the next call by this thread, unless it
 * is too small then. It is freed when the thread ends. NULL where there is no memory. */
void *oe_thread_scratch(size_t size);

#endif
