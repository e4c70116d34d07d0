// A relay between ggml's RPC client, in this process, and a worker in another one.
//
// ggml's client calls abort() when a connection ends, or an answer is not what it expects. It is therefore connected to
// a thread of this process, which passes everything on. When the worker is gone, silent or wrong, the relay says so
// (oe_relay_fault) and from then on answers itself, with zeros. Then ggml's calls return, and their results are worth
// nothing: the caller of ggml must look at the fault before it uses them. The relay also notices at once
// that a connection ends while ggml asks for nothing.
#ifndef OE_RELAY_H
#define OE_RELAY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_relay oe_relay;

// What became of the worker. Values are part of ollama_engine/ml/workers/workers.pyx.
enum oe_relay_state {
    OE_RELAY_WORKS = 0,
    OE_RELAY_GONE = 1,   // the connection ended
    OE_RELAY_SILENT = 2, // nothing came for `patience_ms`, or `quiet_ms`
    OE_RELAY_WRONG = 3,  // an answer had another size than the protocol says
    OE_RELAY_TOLD = 4,   // oe_relay_give_up was called
};

typedef struct oe_relay_counts {
    uint64_t messages;       // commands that ggml sent
    uint64_t round_trips;    // of these the ones that it waited for
    uint64_t bytes_sent;     // to the worker
    uint64_t bytes_received; // from the worker
    uint64_t graphs;         // of the messages: graphs to compute, or to compute again
} oe_relay_counts;

// Size in bytes of ggml's answer to HELLO.
enum { OE_RELAY_HELLO = 28 };

// Starts a thread that accepts one connection of this very process at `listener`, a listening socket on loopback, and
// passes its commands to `worker`, a connected socket on which HELLO has been answered with `hello`. Takes both sockets
// over. Returns NULL, with the sockets closed, when there is no memory or no thread.
//
// `patience_ms`: how long the worker may be silent when it has a graph to compute. `quiet_ms`: when it has none, and
// only moves memory.
oe_relay *oe_relay_new(int listener, int worker, const uint8_t *hello, int patience_ms, int quiet_ms);

// An oe_relay_state. May be called from any thread.
int oe_relay_fault(const oe_relay *relay);

// Whether ggml has got an answer that the relay made up, and keeps it for good. May be called from any thread.
int oe_relay_misled(const oe_relay *relay);

// May be called from any thread; numbers are of slightly different moments.
oe_relay_counts oe_relay_count(const oe_relay *relay);

// Answers by itself from now on, so that a call that waits for the worker returns soon.
void oe_relay_give_up(oe_relay *relay);

// Ends the connection to the worker. The thread ends by itself when ggml has closed its connection, and answers until
// then: the order in which objects are freed may be any. NULL is allowed.
void oe_relay_free(oe_relay *relay);

#ifdef __cplusplus
}
#endif

#endif
