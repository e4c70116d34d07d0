// ggml's RPC server, which listens at a TCP port, on connections that another process hands to it.
//
// Any program of this machine can connect to a port of loopback, or take one that was found free by binding and
// closing. So a worker's front holds one end of a Unix socket and passes connections over it (SCM_RIGHTS); no other
// program can connect. ggml is unpatched: its build names these functions where its source says bind, listen, accept
// and setsockopt (csrc/ggml/build.cmake). Without the variable below they are the system's.
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef MSG_CMSG_CLOEXEC
#define MSG_CMSG_CLOEXEC 0  // Linux only; without it a child of this process would inherit the connection
#endif

// The Unix socket's descriptor. A variable of the environment, since ggml may have loaded this library, whose symbols
// our other libraries do not see then.
static int front(void) {
    const char *number = getenv("OE_RPC_CONNECTIONS");
    return number == NULL || *number == '\0' ? -1 : atoi(number);
}

int oe_rpc_bind(int listener, const struct sockaddr *address, socklen_t size) {
    return front() >= 0 ? 0 : bind(listener, address, size);
}

// Says that connections are taken from now on.
int oe_rpc_listen(int listener, int backlog) {
    if (front() < 0) {
        return listen(listener, backlog);
    }
    return send(front(), "", 1, 0) == 1 ? 0 : -1;
}

// The next connection; -1 where the front has gone.
int oe_rpc_accept(int listener, struct sockaddr *address, socklen_t *size) {
    if (front() < 0) {
        return accept(listener, address, size);
    }
    char byte;
    struct iovec data = {&byte, 1};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr alignment;
    } control;
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n;
    do {
        n = recvmsg(front(), &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    const struct cmsghdr *header = n == 1 ? CMSG_FIRSTHDR(&message) : NULL;
    if (header == NULL || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof(int))) {
        return -1;
    }
    int connection;
    memcpy(&connection, CMSG_DATA(header), sizeof connection);
    return connection;
}

// A Unix socket has no option of TCP, and sends at once anyway.
int oe_rpc_setsockopt(int connection, int level, int name, const void *value, socklen_t size) {
    return level == IPPROTO_TCP && front() >= 0 ? 0 : setsockopt(connection, level, name, value, size);
}
