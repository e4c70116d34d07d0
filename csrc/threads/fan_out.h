// Runs equal pieces of work on several threads, which live as long as the call.
#ifndef OE_FAN_OUT_H
#define OE_FAN_OUT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Does piece `i`. Returns 0, or anything else for a failure. Must not throw.
typedef int (*oe_piece)(void *context, size_t i);

// Does pieces 0 ... n - 1 on the calling thread and up to `threads` - 1 more, each piece once, in no order. Where
// threads cannot be started, the existing ones do all the work. Returns 0, or -1 when a piece failed; the other pieces
// are done all the same.
int oe_fan_out(size_t n, int threads, oe_piece piece, void *context);

#ifdef __cplusplus
}
#endif

#endif
