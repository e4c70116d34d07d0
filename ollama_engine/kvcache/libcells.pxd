# csrc/kvcache/cells.h, csrc/kvcache/kv_indices.h and csrc/kvcache/mask.h, in header order.
from libc.stdint cimport int32_t, int64_t, uint16_t, uint64_t


cdef extern from "kvcache/cells.h" nogil:
    const int32_t OE_CELLS_MAX
    const int32_t OE_SEQUENCES

    ctypedef struct oe_sequence:
        int32_t count
        int32_t last

    ctypedef struct oe_cells:
        int32_t n
        int32_t *position
        uint64_t *owners
        int32_t n_used
        int32_t extent
        oe_sequence *sequence

    ctypedef struct oe_cells_usage:
        int32_t used
        int32_t shared
        int32_t extent

    oe_cells *oe_cells_create(int32_t n) noexcept
    void oe_cells_destroy(oe_cells *cells) noexcept
    bint oe_cells_find(oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *found) noexcept
    bint oe_cells_place(oe_cells *cells, const int32_t *where, const int32_t *position, const int32_t *sequence,
                        int64_t n) noexcept
    void oe_cells_span(const oe_cells *cells, const int32_t *sequence, int64_t n, int32_t *begin,
                       int32_t *end) noexcept
    void oe_cells_next(const oe_cells *cells, const int32_t *position, const int32_t *sequence, int64_t n,
                       int64_t *next) noexcept
    void oe_cells_drop_below(oe_cells *cells, const int64_t *ends) noexcept
    oe_cells_usage oe_cells_usage_without(const oe_cells *cells, const int64_t *ends) noexcept
    int32_t oe_cells_free_without(const oe_cells *cells, const int64_t *ends) noexcept
    bint oe_cells_has_all(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t end) noexcept
    int32_t oe_cells_share(oe_cells *cells, int32_t source, int32_t target, int64_t end) noexcept
    int32_t oe_cells_remove(oe_cells *cells, int32_t sequence, int64_t begin, int64_t end) noexcept
    void oe_cells_put(oe_cells *cells, int32_t cell, int32_t position, uint64_t owners) noexcept
    int32_t oe_cells_shift_plan(const oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard,
                                int32_t *source, int32_t *target) noexcept
    void oe_cells_shift(oe_cells *cells, int32_t sequence, int64_t begin, int64_t discard, const int32_t *source,
                        const int32_t *target, int32_t n) noexcept
    int32_t oe_cells_defrag_plan(const oe_cells *cells, int32_t *source, int32_t *target) noexcept
    bint oe_cells_move(oe_cells *cells, const int32_t *source, const int32_t *target, int64_t n) noexcept
    const char *oe_cells_fault(const oe_cells *cells, int32_t *sequence) noexcept


cdef extern from "kvcache/kv_indices.h" nogil:
    const int64_t OE_KV_INDICES_NO_MEMORY

    int64_t oe_kv_indices_length(const oe_cells *cells, const int32_t *sequence, int64_t n) noexcept
    int64_t oe_kv_indices_fill(oe_cells *cells, const int32_t *sequence, const int32_t *first, const int32_t *last,
                               int64_t n, int32_t *part, int32_t *list) noexcept


cdef extern from "kvcache/mask.h" nogil:
    void oe_mask_fill(const oe_cells *cells, int32_t begin, int32_t end, const int32_t *sequence, const int32_t *first,
                      const int32_t *last, int64_t n, uint16_t *mask) noexcept
