# csrc/rpc/relay.h

from libc.stdint cimport uint8_t, uint64_t


cdef extern from "rpc/relay.h" nogil:
    struct oe_relay:
        pass
    struct oe_relay_counts:
        uint64_t messages
        uint64_t round_trips
        uint64_t bytes_sent
        uint64_t bytes_received
        uint64_t graphs
    int OE_RELAY_WORKS
    int OE_RELAY_GONE
    int OE_RELAY_SILENT
    int OE_RELAY_WRONG
    int OE_RELAY_TOLD

    oe_relay *oe_relay_new(int listener, int worker, const uint8_t *hello, int patience_ms, int quiet_ms)
    int oe_relay_fault(const oe_relay *relay)
    int oe_relay_misled(const oe_relay *relay)
    oe_relay_counts oe_relay_count(const oe_relay *relay)
    void oe_relay_give_up(oe_relay *relay)
    void oe_relay_free(oe_relay *relay)
