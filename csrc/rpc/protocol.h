// What the relay has to know of ggml's RPC protocol, version 7 (ggml/src/ggml-rpc/ggml-rpc.cpp). A test compares it
// with the pinned sources.
//
// A request is a command (1 byte), the size of its body (8 bytes) and the body; an answer is a size and a body. Which
// commands have an answer, and how long it is, is not said in the messages.
#ifndef OE_RPC_PROTOCOL_H
#define OE_RPC_PROTOCOL_H

#include <stdint.h>

enum { OE_RPC_HEADER = 9 };

enum oe_rpc_command {
    OE_RPC_ALLOC_BUFFER = 0,
    OE_RPC_GET_ALIGNMENT,
    OE_RPC_GET_MAX_SIZE,
    OE_RPC_BUFFER_GET_BASE,
    OE_RPC_FREE_BUFFER,
    OE_RPC_BUFFER_CLEAR,
    OE_RPC_SET_TENSOR,
    OE_RPC_SET_TENSOR_HASH,
    OE_RPC_GET_TENSOR,
    OE_RPC_COPY_TENSOR,
    OE_RPC_GRAPH_COMPUTE,
    OE_RPC_GET_DEVICE_MEMORY,
    OE_RPC_INIT_TENSOR,
    OE_RPC_GET_ALLOC_SIZE,
    OE_RPC_HELLO,
    OE_RPC_DEVICE_COUNT,
    OE_RPC_GRAPH_RECOMPUTE,
    OE_RPC_MEMSET_TENSOR,
};

enum {
    OE_RPC_NONE = -1,     // no answer
    OE_RPC_AS_ASKED = -2, // as long as the last 8 bytes of the request say
};

// Bytes of the answer to a command.
static inline int64_t oe_rpc_answer_size(uint8_t command) {
    switch (command) {
    case OE_RPC_ALLOC_BUFFER:
    case OE_RPC_GET_DEVICE_MEMORY:
        return 16;
    case OE_RPC_GET_ALIGNMENT:
    case OE_RPC_GET_MAX_SIZE:
    case OE_RPC_BUFFER_GET_BASE:
    case OE_RPC_GET_ALLOC_SIZE:
        return 8;
    case OE_RPC_DEVICE_COUNT:
        return 4;
    case OE_RPC_SET_TENSOR_HASH:
    case OE_RPC_COPY_TENSOR:
        return 1;
    case OE_RPC_GET_TENSOR:
        return OE_RPC_AS_ASKED;
    default:
        return OE_RPC_NONE;
    }
}

// The first 8 bytes of an answer that is made up. ggml stops at an alignment or an address of 0, and would copy in
// another way what could not be copied.
static inline uint64_t oe_rpc_own_answer(uint8_t command) {
    switch (command) {
    case OE_RPC_GET_ALIGNMENT:
        return 128;
    case OE_RPC_GET_MAX_SIZE:
        return UINT64_MAX;
    case OE_RPC_BUFFER_GET_BASE:
        return 1 << 20;
    case OE_RPC_SET_TENSOR_HASH:
    case OE_RPC_COPY_TENSOR:
        return 1;
    default:
        return 0;
    }
}

// Whether ggml keeps the answer for good, by the address of the worker.
static inline int oe_rpc_is_kept(uint8_t command) {
    return command == OE_RPC_DEVICE_COUNT || command == OE_RPC_GET_ALIGNMENT || command == OE_RPC_GET_MAX_SIZE ||
           command == OE_RPC_GET_ALLOC_SIZE;
}

#endif
