// A device of ggml that lends less memory than it has, for a worker (`ollama-engine worker --memory`).
#ifndef OE_RPC_LIMITED_DEVICE_H
#define OE_RPC_LIMITED_DEVICE_H

#include <ggml-backend.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// `device` again, which says that it has at most `limit` bytes, and grants no more in buffers. What its kernels take
// beside that is not counted. It lasts as long as the process: for those that serve. Not for several threads. Returns
// NULL where there is no memory.
ggml_backend_dev_t oe_limited_device(ggml_backend_dev_t device, size_t limit);

#ifdef __cplusplus
}
#endif

#endif
