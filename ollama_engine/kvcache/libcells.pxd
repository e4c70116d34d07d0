# csrc/kvcache/cells.h, csrc/kvcache/kv_indices.h and csrc/kvcache/mask.h, in header order.
from libc.stdint cimport int32_t, int64_t, uint16_t


cdef extern from "kvcache/cells.h" nogil:
    const int32_t OE_CELLS_MAX
    const int32_t OE_SEQUENCES_MAX
    const int32_t OE_NO_MEMORY

    ctypedef struct oe_reach:
        int64_t window
        int64_t chunk
        int64_t memory

    ctypedef struct oe_sequence:
        int32_t *cell
        int32_t begin
        int32_t end
        int64_t next

    ctypedef struct oe_cells:
        int32_t n
        int32_t *position
        int32_t n_used
        oe_sequence *sequence

    ctypedef struct oe_cells_held:
        int32_t used
        int32_t shared

    oe_cells *oe_cells_create(int32_t n, oe_reach reach) noexcept
    void oe_cells_destroy(oe_cells *cells) noexcept
    bint oe_cells_hold(oe_cells *cells, int32_t n) noexcept
    bint oe_cells_in_order(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n) noexcept
    bint oe_cells_find(oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *found) noexcept
    int oe_cells_place(oe_cells *cells, const int32_t *where, const int32_t *position, const int32_t *sequence,
                       int64_t n) noexcept
    void oe_cells_span(const oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *begin,
                       int32_t *end) noexcept
    void oe_cells_slide(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n) noexcept
    int32_t oe_cells_room_for(oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n) noexcept
    int32_t oe_cells_room(oe_cells *cells, const int32_t *sequence, int64_t n) noexcept
    oe_cells_held oe_cells_usage(oe_cells *cells) noexcept
    int32_t oe_index(const oe_cells *cells, const oe_sequence *s, int64_t position) noexcept
    bint oe_cells_has_all(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t end) noexcept
    int32_t oe_cells_share(oe_cells *cells, int32_t source, int32_t target, int64_t end) noexcept
    int32_t oe_cells_remove(oe_cells *cells, int32_t sequence, int64_t begin, int64_t end) noexcept
    int32_t oe_cells_shift_plan(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard,
                                int32_t *source, int32_t *target) noexcept
    bint oe_cells_can_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard,
                            const int32_t *without, int64_t n) noexcept
    void oe_cells_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard,
                        const int32_t *target) noexcept
    int32_t oe_cells_pack_plan(const oe_cells *cells, int32_t begin, int32_t end, int32_t most, int32_t *source,
                               int32_t *target) noexcept
    void oe_cells_pack(oe_cells *cells, const int32_t *source, const int32_t *target, int32_t n) noexcept
    const char *oe_cells_fault(oe_cells *cells, int32_t *sequence) noexcept


cdef extern from "kvcache/kv_indices.h" nogil:
    int64_t oe_kv_indices_length(oe_cells *cells, const int32_t *sequence, int64_t n) noexcept
    int64_t oe_kv_indices_fill(oe_cells *cells, const int32_t *sequence, const int32_t *first, const int32_t *last,
                               int64_t n, int32_t *range, int32_t *index) noexcept


cdef extern from "kvcache/mask.h" nogil:
    void oe_mask_fill(const oe_cells *cells, int32_t begin, int32_t end, const int32_t *sequence, const int32_t *first,
                      const int32_t *last, int64_t n, uint16_t *mask) noexcept
    void oe_mask_of_ranges(const int32_t *range, int64_t n, int32_t width, uint16_t *mask) noexcept
