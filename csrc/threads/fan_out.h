// Equal pieces of work, done side by side by threads that live as long as the call.
#ifndef OE_FAN_OUT_H
#define OE_FAN_OUT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Does piece `i`; 0, or anything else when it failed. Must not throw.
typedef int (*oe_piece)(void *context, size_t i);

// Does pieces 0 ... n - 1 on the calling thread and up to `threads` - 1 more, each piece once and in no order. Where
// threads cannot be started, those that there are do it all. 0, or -1 when a piece failed; the others are done then,
// too.
int oe_fan_out(size_t n, int threads, oe_piece piece, void *context);

#ifdef __cplusplus
}
#endif

#endif
