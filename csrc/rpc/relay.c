#include "rpc/relay.h"

#include "rpc/protocol.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 // macOS has SO_NOSIGPIPE instead, see `plain`
#endif

enum {
    BUFFER = 1 << 18,
    TICK_MS = 200,        // how often a waiting thread looks whether it was told to give up
    MOST_DESCRIPTORS = 1 << 16,
};

struct oe_relay {
    int listener;
    int worker;
    int client;
    int patience_ms;
    int quiet_ms;
    bool computes; // a graph was sent, and nothing answered since
    uint8_t hello[OE_RELAY_HELLO];
    atomic_int state;
    atomic_int leaving;
    atomic_int misled;
    _Atomic uint64_t messages, round_trips, bytes_sent, bytes_received, graphs;
    uint8_t buffer[BUFFER];
};

// -- sockets ----------------------------------------------------------------------------------------------------------

static void plain(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
#ifdef SO_NOSIGPIPE
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
}

static void close_fully(int *fd) {
    if (*fd >= 0) {
        shutdown(*fd, SHUT_RDWR); // a forked child may hold the descriptor, too
        close(*fd);
        *fd = -1;
    }
}

static bool works(const oe_relay *r) {
    return atomic_load(&r->state) == OE_RELAY_WORKS;
}

// Waits until `fd` is ready. Returns 1; 0 for a silence of `patience_ms` (negative: for ever); -1 when `until` is set,
// or where nothing can come.
static int wait_for(int fd, short events, int patience_ms, const atomic_int *until) {
    for (int64_t waited = 0; patience_ms < 0 || waited < patience_ms; waited += TICK_MS) {
        struct pollfd p = {.fd = fd, .events = events};
        const int n = poll(&p, 1, TICK_MS);
        if (n > 0) {
            return 1;
        }
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            return -1;
        }
        if (atomic_load(until) != 0) {
            return -1;
        }
    }
    return 0;
}

// The first fault is the one that is told.
static void fail(oe_relay *r, int state) {
    int expected = OE_RELAY_WORKS;
    atomic_compare_exchange_strong(&r->state, &expected, state);
}

static int patience(const oe_relay *r) {
    return r->computes ? r->patience_ms : r->quiet_ms;
}

// Up to `size` bytes from the worker; 0 when there are none to come, with the fault noted.
static size_t from_worker(oe_relay *r, uint8_t *data, size_t size) {
    while (works(r)) {
        const int ready = wait_for(r->worker, POLLIN, patience(r), &r->state);
        if (ready <= 0) {
            fail(r, ready == 0 ? OE_RELAY_SILENT : OE_RELAY_TOLD);
            return 0;
        }
        const ssize_t n = recv(r->worker, data, size, 0);
        if (n > 0) {
            atomic_fetch_add(&r->bytes_received, (uint64_t)n);
            return (size_t)n;
        }
        if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            fail(r, OE_RELAY_GONE);
        }
    }
    return 0;
}

// Sends all bytes, or notes the fault.
static void to_worker(oe_relay *r, const uint8_t *data, size_t size) {
    while (size > 0 && works(r)) {
        const ssize_t n = send(r->worker, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            atomic_fetch_add(&r->bytes_sent, (uint64_t)n);
            data += n;
            size -= (size_t)n;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            const int ready = wait_for(r->worker, POLLOUT, patience(r), &r->state);
            if (ready <= 0) {
                fail(r, ready == 0 ? OE_RELAY_SILENT : OE_RELAY_TOLD);
            }
        } else if (n == 0 || errno != EINTR) {
            fail(r, OE_RELAY_GONE);
        }
    }
}

// Exactly `size` bytes from ggml. False when its connection has ended.
static bool from_client(oe_relay *r, uint8_t *data, size_t size) {
    while (size > 0) {
        const ssize_t n = recv(r->client, data, size, 0);
        if (n > 0) {
            data += n;
            size -= (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            return false;
        }
    }
    return true;
}

static bool to_client(oe_relay *r, const uint8_t *data, size_t size) {
    while (size > 0) {
        const ssize_t n = send(r->client, data, size, MSG_NOSIGNAL);
        if (n > 0) {
            data += n;
            size -= (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            return false;
        }
    }
    return true;
}

// -- one command ------------------------------------------------------------------------------------------------------

// The command's body, passed on as it comes. `last`: its last 8 bytes, which say how much a GET_TENSOR wants.
static bool pass_request(oe_relay *r, uint8_t command, uint64_t size, uint64_t *last) {
    // What ggml sends in three pieces leaves in one where it is short: one packet instead of three.
    size_t held = OE_RPC_HEADER;
    r->buffer[0] = command;
    memcpy(r->buffer + 1, &size, sizeof size);
    uint8_t tail[2 * sizeof *last] = {0}; // of what came before, then of this chunk
    while (size > 0) {
        const size_t n = size < BUFFER - held ? (size_t)size : BUFFER - held;
        if (!from_client(r, r->buffer + held, n)) {
            return false;
        }
        const size_t kept = n < sizeof *last ? n : sizeof *last;
        memmove(tail, tail + kept, sizeof *last);
        memcpy(tail + sizeof *last - kept, r->buffer + held + n - kept, kept);
        to_worker(r, r->buffer, held + n);
        held = 0;
        size -= n;
    }
    to_worker(r, r->buffer, held);
    memcpy(last, tail, sizeof *last);
    return true;
}

// What ggml gets instead of an answer: zeros, but for commands whose zero would make it stop or do more work.
static void own_answer(uint8_t command, uint8_t *data, uint64_t at, size_t size) {
    memset(data, 0, size);
    const uint64_t value = oe_rpc_own_answer(command);
    for (size_t i = 0; i < size && at + i < sizeof value; i++) {
        data[i] = (uint8_t)(value >> (8 * (at + i)));
    }
}

// The answer's body, of `size` bytes; what the worker does not give is made up.
static bool pass_answer(oe_relay *r, uint8_t command, uint64_t size) {
    uint64_t header = 0;
    for (size_t have = 0; have < sizeof header && works(r);) {
        have += from_worker(r, (uint8_t *)&header + have, sizeof header - have);
    }
    if (works(r) && header != size) {
        fail(r, OE_RELAY_WRONG);
    }
    if (!to_client(r, (const uint8_t *)&size, sizeof size)) {
        return false;
    }
    for (uint64_t done = 0; done < size;) {
        size_t n = size - done < BUFFER ? (size_t)(size - done) : BUFFER;
        const size_t came = works(r) ? from_worker(r, r->buffer, n) : 0;
        if (came > 0) {
            n = came;
        } else {
            own_answer(command, r->buffer, done, n);
            if (oe_rpc_is_kept(command)) {
                atomic_store(&r->misled, 1);
            }
        }
        if (!to_client(r, r->buffer, n)) {
            return false;
        }
        done += n;
    }
    r->computes = false; // a worker does one thing after the other
    return true;
}

// Waits until ggml sends something. A worker says nothing meanwhile, so what can be read there is its end, or wrong.
static void await_command(oe_relay *r) {
    while (works(r)) {
        struct pollfd ends[] = {{.fd = r->client, .events = POLLIN}, {.fd = r->worker, .events = POLLIN}};
        if (poll(ends, 2, -1) < 0 && errno != EINTR && errno != EAGAIN) {
            return;
        }
        if (ends[1].revents != 0) {
            uint8_t first;
            const ssize_t n = recv(r->worker, &first, 1, MSG_PEEK | MSG_DONTWAIT);
            if (n >= 0 || (errno != EINTR && errno != EAGAIN)) {
                fail(r, n > 0 ? OE_RELAY_WRONG : OE_RELAY_GONE);
            }
        }
        if (ends[0].revents != 0) {
            return;
        }
    }
}

static bool pass_command(oe_relay *r) {
    uint8_t command;
    uint64_t size, last = 0;
    await_command(r);
    if (!from_client(r, &command, 1) || !from_client(r, (uint8_t *)&size, sizeof size)) {
        return false;
    }
    if (command == OE_RPC_HELLO) { // was said already, see workers.py
        if (size > BUFFER || !from_client(r, r->buffer, (size_t)size)) {
            return false;
        }
        const uint64_t n = OE_RELAY_HELLO;
        return to_client(r, (const uint8_t *)&n, sizeof n) && to_client(r, r->hello, OE_RELAY_HELLO);
    }
    atomic_fetch_add(&r->messages, 1);
    if (command == OE_RPC_GRAPH_COMPUTE || command == OE_RPC_GRAPH_RECOMPUTE) {
        atomic_fetch_add(&r->graphs, 1);
        r->computes = true;
    }
    if (!pass_request(r, command, size, &last)) {
        return false;
    }
    const int64_t answer = oe_rpc_answer_size(command);
    if (answer == OE_RPC_NONE) {
        return true;
    }
    atomic_fetch_add(&r->round_trips, 1);
    return pass_answer(r, command, answer == OE_RPC_AS_ASKED ? last : (uint64_t)answer);
}

// -- the thread -------------------------------------------------------------------------------------------------------

// Whether the other end of `fd` is a socket of this process. Any user of the machine may connect to loopback.
static bool is_own(int fd) {
    struct sockaddr_in peer, name;
    socklen_t size = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) != 0) {
        return false;
    }
    const long limit = sysconf(_SC_OPEN_MAX);
    const int end = limit > 0 && limit < MOST_DESCRIPTORS ? (int)limit : MOST_DESCRIPTORS;
    for (int other = 0; other < end; other++) {
        size = sizeof name;
        if (getsockname(other, (struct sockaddr *)&name, &size) == 0 && name.sin_family == AF_INET &&
            name.sin_port == peer.sin_port && name.sin_addr.s_addr == peer.sin_addr.s_addr) {
            return true;
        }
    }
    return false;
}

static bool accept_own(oe_relay *r) {
    while (wait_for(r->listener, POLLIN, -1, &r->leaving) > 0) {
        const int fd = accept(r->listener, NULL, NULL);
        if (fd >= 0 && is_own(fd)) {
            plain(fd);
            r->client = fd;
            return true;
        }
        if (fd >= 0) {
            close(fd);
        } else {
            poll(NULL, 0, 10); // no descriptor is free: the next one that is goes to ggml, which waits for it
        }
    }
    return false;
}

static void *serve(void *self) {
    oe_relay *r = self;
    while (accept_own(r)) { // ggml connects again where it held nothing that needs the connection
        while (pass_command(r)) {
        }
        close_fully(&r->client);
    }
    close_fully(&r->worker);
    close_fully(&r->listener);
    free(r);
    return NULL;
}

oe_relay *oe_relay_new(int listener, int worker, const uint8_t *hello, int patience_ms, int quiet_ms) {
    oe_relay *r = calloc(1, sizeof *r);
    sigset_t all, before;
    pthread_t thread;
    int status = -1;
    if (r != NULL) {
        r->listener = listener;
        r->worker = worker;
        r->client = -1;
        r->patience_ms = patience_ms;
        r->quiet_ms = quiet_ms;
        memcpy(r->hello, hello, OE_RELAY_HELLO);
        plain(worker);
        sigfillset(&all); // signals are for the program's own threads
        pthread_sigmask(SIG_SETMASK, &all, &before);
        status = pthread_create(&thread, NULL, serve, r);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (status != 0) {
        close(listener);
        close(worker);
        free(r);
        return NULL;
    }
    pthread_detach(thread);
    return r;
}

int oe_relay_fault(const oe_relay *r) {
    return atomic_load(&r->state);
}

int oe_relay_misled(const oe_relay *r) {
    return atomic_load(&r->misled);
}

oe_relay_counts oe_relay_count(const oe_relay *r) {
    return (oe_relay_counts){
        .messages = atomic_load(&r->messages),
        .round_trips = atomic_load(&r->round_trips),
        .bytes_sent = atomic_load(&r->bytes_sent),
        .bytes_received = atomic_load(&r->bytes_received),
        .graphs = atomic_load(&r->graphs),
    };
}

void oe_relay_give_up(oe_relay *r) {
    fail(r, OE_RELAY_TOLD);
}

void oe_relay_free(oe_relay *r) {
    if (r == NULL) {
        return;
    }
    fail(r, OE_RELAY_TOLD);
    shutdown(r->worker, SHUT_RDWR); // which lets the worker free what it holds for us
    atomic_store(&r->leaving, 1);   // last: the thread may free `r` at once
}
