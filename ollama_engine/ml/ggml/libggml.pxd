# ggml's C interface: only what this package calls, in the order of ggml's headers.
# A test compares every line with the headers of the pinned sources.
#
# `except +`: ggml's C++ parts allocate with `new`; a std::bad_alloc becomes a MemoryError instead of std::terminate.

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libcpp cimport bool


cdef extern from "ggml.h" nogil:
    int GGML_MAX_DIMS
    int GGML_MAX_SRC
    int GGML_MAX_NAME
    int GGML_MAX_N_THREADS
    int GGML_ROPE_TYPE_NORMAL
    int GGML_ROPE_TYPE_NEOX
    int GGML_ROPE_TYPE_MROPE
    int GGML_ROPE_TYPE_VISION
    int GGML_ROPE_TYPE_IMROPE
    int GGML_MROPE_SECTIONS
    int GGML_N_TASKS_MAX

    enum ggml_status:
        GGML_STATUS_ALLOC_FAILED
        GGML_STATUS_FAILED
        GGML_STATUS_SUCCESS
        GGML_STATUS_ABORTED

    enum ggml_type:
        GGML_TYPE_F32
        GGML_TYPE_F16
        GGML_TYPE_Q4_0
        GGML_TYPE_Q8_0
        GGML_TYPE_Q8_1
        GGML_TYPE_Q4_K
        GGML_TYPE_Q6_K
        GGML_TYPE_Q8_K
        GGML_TYPE_I8
        GGML_TYPE_I16
        GGML_TYPE_I32
        GGML_TYPE_I64
        GGML_TYPE_F64
        GGML_TYPE_BF16
        GGML_TYPE_MXFP4
        GGML_TYPE_Q4_1
        GGML_TYPE_Q5_0
        GGML_TYPE_Q5_1
        GGML_TYPE_IQ4_NL
        GGML_TYPE_COUNT

    enum ggml_prec:
        GGML_PREC_F32

    enum ggml_op:
        GGML_OP_NONE
        GGML_OP_MUL
        GGML_OP_RMS_NORM
        GGML_OP_MUL_MAT
        GGML_OP_MUL_MAT_ID
        GGML_OP_VIEW
        GGML_OP_RESHAPE
        GGML_OP_PERMUTE
        GGML_OP_TRANSPOSE
        GGML_OP_CONT
        GGML_OP_ARGSORT
        GGML_OP_TOP_K
        GGML_OP_CUSTOM
        GGML_OP_CPY
        GGML_OP_SET_ROWS
        GGML_OP_GLU

    enum ggml_unary_op:
        GGML_UNARY_OP_ABS
        GGML_UNARY_OP_NEG
        GGML_UNARY_OP_TANH
        GGML_UNARY_OP_RELU
        GGML_UNARY_OP_SIGMOID
        GGML_UNARY_OP_GELU
        GGML_UNARY_OP_GELU_QUICK
        GGML_UNARY_OP_SILU
        GGML_UNARY_OP_EXP
        GGML_UNARY_OP_SOFTPLUS
        GGML_UNARY_OP_GELU_ERF
        GGML_UNARY_OP_FLOOR

    enum ggml_glu_op:
        GGML_GLU_OP_REGLU
        GGML_GLU_OP_GEGLU
        GGML_GLU_OP_SWIGLU
        GGML_GLU_OP_GEGLU_ERF
        GGML_GLU_OP_GEGLU_QUICK

    enum ggml_log_level:
        GGML_LOG_LEVEL_NONE
        GGML_LOG_LEVEL_DEBUG
        GGML_LOG_LEVEL_INFO
        GGML_LOG_LEVEL_WARN
        GGML_LOG_LEVEL_ERROR
        GGML_LOG_LEVEL_CONT

    enum ggml_tensor_flag:
        GGML_TENSOR_FLAG_INPUT
        GGML_TENSOR_FLAG_OUTPUT
        GGML_TENSOR_FLAG_COMPUTE

    enum ggml_op_pool:
        GGML_OP_POOL_MAX
        GGML_OP_POOL_AVG

    enum ggml_scale_mode:
        GGML_SCALE_MODE_NEAREST
        GGML_SCALE_MODE_BILINEAR
        GGML_SCALE_MODE_BICUBIC

    enum ggml_scale_flag:
        GGML_SCALE_FLAG_ALIGN_CORNERS
        GGML_SCALE_FLAG_ANTIALIAS

    enum ggml_sort_order:
        GGML_SORT_ORDER_ASC
        GGML_SORT_ORDER_DESC

    struct ggml_context:
        pass
    struct ggml_cgraph:
        pass
    struct ggml_backend_buffer:
        pass

    struct ggml_init_params:
        size_t mem_size
        void *mem_buffer
        bool no_alloc

    struct ggml_tensor:
        ggml_type type
        ggml_backend_buffer *buffer
        int64_t ne[4]
        size_t nb[4]
        ggml_op op
        int32_t flags
        ggml_tensor *src[10]
        ggml_tensor *view_src
        size_t view_offs
        void *data
        char name[64]

    ctypedef void (*ggml_abort_callback_t)(const char *error_message) noexcept
    ctypedef void (*ggml_log_callback)(ggml_log_level level, const char *text, void *user_data) noexcept

    ggml_abort_callback_t ggml_set_abort_callback(ggml_abort_callback_t callback)
    const char *ggml_version()

    int64_t ggml_nelements(const ggml_tensor *tensor)
    size_t ggml_nbytes(const ggml_tensor *tensor)
    int64_t ggml_blck_size(ggml_type type)
    size_t ggml_type_size(ggml_type type)
    size_t ggml_row_size(ggml_type type, int64_t ne)
    const char *ggml_type_name(ggml_type type)
    const char *ggml_op_name(ggml_op op)
    ggml_glu_op ggml_get_glu_op(const ggml_tensor *tensor)
    bool ggml_is_quantized(ggml_type type)
    bool ggml_is_transposed(const ggml_tensor *tensor)
    bool ggml_is_permuted(const ggml_tensor *tensor)
    int ggml_n_dims(const ggml_tensor *tensor)
    bool ggml_is_contiguous(const ggml_tensor *tensor)
    bool ggml_is_contiguous_1(const ggml_tensor *tensor)
    bool ggml_is_contiguous_rows(const ggml_tensor *tensor)
    bool ggml_are_same_shape(const ggml_tensor *t0, const ggml_tensor *t1)
    bool ggml_can_repeat(const ggml_tensor *t0, const ggml_tensor *t1)
    size_t ggml_tensor_overhead()
    bool ggml_validate_row_data(ggml_type type, const void *data, size_t nbytes)
    ggml_context *ggml_init(ggml_init_params params)
    void ggml_reset(ggml_context *ctx)
    void ggml_free(ggml_context *ctx)
    size_t ggml_used_mem(const ggml_context *ctx)
    void *ggml_get_mem_buffer(const ggml_context *ctx)
    size_t ggml_get_mem_size(const ggml_context *ctx)
    int64_t ggml_nrows(const ggml_tensor *tensor)
    ggml_tensor *ggml_new_tensor(ggml_context *ctx, ggml_type type, int n_dims, const int64_t *ne)
    ggml_tensor *ggml_dup_tensor(ggml_context *ctx, const ggml_tensor *src)
    ggml_tensor *ggml_view_tensor(ggml_context *ctx, ggml_tensor *src)
    ggml_tensor *ggml_get_first_tensor(const ggml_context *ctx)
    ggml_tensor *ggml_get_next_tensor(const ggml_context *ctx, ggml_tensor *tensor)
    ggml_tensor *ggml_set_name(ggml_tensor *tensor, const char *name)
    void ggml_set_input(ggml_tensor *tensor)
    void ggml_set_output(ggml_tensor *tensor)

    ggml_tensor *ggml_add(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b)
    ggml_tensor *ggml_add_id(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b, ggml_tensor *ids)
    ggml_tensor *ggml_sub(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b)
    ggml_tensor *ggml_mul(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b)
    ggml_tensor *ggml_div(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b)
    ggml_tensor *ggml_sqr(ggml_context *ctx, ggml_tensor *a)
    ggml_tensor *ggml_sqrt(ggml_context *ctx, ggml_tensor *a)
    ggml_tensor *ggml_log(ggml_context *ctx, ggml_tensor *a)
    ggml_tensor *ggml_sin(ggml_context *ctx, ggml_tensor *a)
    ggml_tensor *ggml_cos(ggml_context *ctx, ggml_tensor *a)
    ggml_tensor *ggml_sum_rows(ggml_context *ctx, ggml_tensor *a)
    ggml_tensor *ggml_mean(ggml_context *ctx, ggml_tensor *a)
    ggml_tensor *ggml_repeat_4d(ggml_context *ctx, ggml_tensor *a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3)
    ggml_tensor *ggml_concat(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b, int dim)
    ggml_tensor *ggml_xielu(ggml_context *ctx, ggml_tensor *a, float alpha_n, float alpha_p, float beta, float eps)
    ggml_tensor *ggml_glu_split(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b, ggml_glu_op op)
    ggml_tensor *ggml_swiglu_oai(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b, float alpha, float limit)
    ggml_tensor *ggml_norm(ggml_context *ctx, ggml_tensor *a, float eps)
    ggml_tensor *ggml_rms_norm(ggml_context *ctx, ggml_tensor *a, float eps)
    ggml_tensor *ggml_l2_norm(ggml_context *ctx, ggml_tensor *a, float eps)
    ggml_tensor *ggml_mul_mat(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b)
    ggml_tensor *ggml_mul_mat_id(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b, ggml_tensor *ids)
    bool ggml_prec_set_acc(ggml_tensor *a, ggml_prec prec)
    ggml_tensor *ggml_scale_bias(ggml_context *ctx, ggml_tensor *a, float s, float b)
    ggml_tensor *ggml_cpy(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b)
    ggml_tensor *ggml_cast(ggml_context *ctx, ggml_tensor *a, ggml_type type)
    ggml_tensor *ggml_cont(ggml_context *ctx, ggml_tensor *a)
    ggml_tensor *ggml_reshape_4d(ggml_context *ctx, ggml_tensor *a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3)
    ggml_tensor *ggml_view_4d(ggml_context *ctx, ggml_tensor *a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3,
                              size_t nb1, size_t nb2, size_t nb3, size_t offset)
    ggml_tensor *ggml_permute(ggml_context *ctx, ggml_tensor *a, int axis0, int axis1, int axis2, int axis3)
    ggml_tensor *ggml_get_rows(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b)
    ggml_tensor *ggml_set_rows(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b, ggml_tensor *c)
    ggml_tensor *ggml_soft_max_ext(ggml_context *ctx, ggml_tensor *a, ggml_tensor *mask, float scale, float max_bias)
    void ggml_soft_max_add_sinks(ggml_tensor *a, ggml_tensor *sinks)
    ggml_tensor *ggml_rope_ext(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b, ggml_tensor *c, int n_dims, int mode,
                               int n_ctx_orig, float freq_base, float freq_scale, float ext_factor, float attn_factor,
                               float beta_fast, float beta_slow)
    ggml_tensor *ggml_rope_multi(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b, ggml_tensor *c, int n_dims,
                                 int sections[4], int mode, int n_ctx_orig, float freq_base, float freq_scale,
                                 float ext_factor, float attn_factor, float beta_fast, float beta_slow)
    ggml_tensor *ggml_rope_set_offset(ggml_tensor *a, int n_offs)
    ggml_tensor *ggml_clamp(ggml_context *ctx, ggml_tensor *a, float min, float max)
    ggml_tensor *ggml_im2col(ggml_context *ctx, ggml_tensor *a, ggml_tensor *b, int s0, int s1, int p0, int p1, int d0,
                             int d1, bool is_2D, ggml_type dst_type)
    ggml_tensor *ggml_pool_2d(ggml_context *ctx, ggml_tensor *a, ggml_op_pool op, int k0, int k1, int s0, int s1,
                              float p0, float p1)
    ggml_tensor *ggml_interpolate(ggml_context *ctx, ggml_tensor *a, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3,
                                  uint32_t mode)
    ggml_tensor *ggml_pad_ext(ggml_context *ctx, ggml_tensor *a, int lp0, int rp0, int lp1, int rp1, int lp2, int rp2,
                              int lp3, int rp3)
    ggml_tensor *ggml_pad_ext_circular(ggml_context *ctx, ggml_tensor *a, int lp0, int rp0, int lp1, int rp1, int lp2,
                                       int rp2, int lp3, int rp3)
    ggml_tensor *ggml_pad_reflect_1d(ggml_context *ctx, ggml_tensor *a, int p0, int p1)
    ggml_tensor *ggml_top_k(ggml_context *ctx, ggml_tensor *a, int k)
    ggml_tensor *ggml_argsort(ggml_context *ctx, ggml_tensor *a, ggml_sort_order order)
    ggml_tensor *ggml_flash_attn_ext(ggml_context *ctx, ggml_tensor *q, ggml_tensor *k, ggml_tensor *v,
                                     ggml_tensor *mask, float scale, float max_bias, float logit_softcap)
    void ggml_flash_attn_ext_add_sinks(ggml_tensor *a, ggml_tensor *sinks)
    ggml_tensor *ggml_unary(ggml_context *ctx, ggml_tensor *a, ggml_unary_op op)
    ctypedef void (*ggml_custom_op_t)(ggml_tensor *dst, int ith, int nth, void *userdata) noexcept
    ggml_tensor *ggml_custom_4d(ggml_context *ctx, ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3,
                                ggml_tensor **args, int n_args, ggml_custom_op_t fun, int n_tasks, void *userdata)
    ggml_tensor *ggml_custom_inplace(ggml_context *ctx, ggml_tensor *a, ggml_tensor **args, int n_args,
                                     ggml_custom_op_t fun, int n_tasks, void *userdata)

    void ggml_build_forward_expand(ggml_cgraph *cgraph, ggml_tensor *tensor)
    ggml_cgraph *ggml_new_graph_custom(ggml_context *ctx, size_t size, bool grads)
    ggml_tensor *ggml_graph_node(ggml_cgraph *cgraph, int i)
    int ggml_graph_n_nodes(ggml_cgraph *cgraph)
    size_t ggml_graph_overhead_custom(size_t size, bool grads)
    void ggml_log_set(ggml_log_callback log_callback, void *user_data)

    bool ggml_quantize_requires_imatrix(ggml_type type)
    size_t ggml_quantize_chunk(ggml_type type, const float *src, void *dst, int64_t start, int64_t nrows,
                               int64_t n_per_row, const float *imatrix)

    ctypedef void (*ggml_to_float_t)(const void *x, float *y, int64_t k) noexcept
    struct ggml_type_traits:
        ggml_to_float_t to_float
    const ggml_type_traits *ggml_get_type_traits(ggml_type type)

    struct ggml_threadpool_params:
        bool cpumask[512]
        int n_threads
        uint32_t poll
        bool strict_cpu
        bool paused
    struct ggml_threadpool:
        pass
    ctypedef ggml_threadpool *ggml_threadpool_t
    void ggml_threadpool_params_init(ggml_threadpool_params *p, int n_threads)


cdef extern from "ggml-cpu.h" nogil:
    struct ggml_cplan:
        size_t work_size


cdef extern from "ggml-alloc.h" nogil:
    struct ggml_backend_buffer_type:
        pass
    ctypedef ggml_backend_buffer_type *ggml_backend_buffer_type_t
    ctypedef ggml_backend_buffer *ggml_backend_buffer_t
    ggml_backend_buffer *ggml_backend_alloc_ctx_tensors_from_buft(ggml_context *ctx,
                                                                  ggml_backend_buffer_type_t buft) except +
    size_t ggml_backend_alloc_ctx_tensors_from_buft_size(ggml_context *ctx, ggml_backend_buffer_type_t buft)


cdef extern from "ggml-backend.h" nogil:
    struct ggml_backend:
        pass
    struct ggml_backend_reg:
        pass
    struct ggml_backend_device:
        pass
    struct ggml_backend_sched:
        pass
    ctypedef ggml_backend *ggml_backend_t
    ctypedef ggml_backend_reg *ggml_backend_reg_t
    ctypedef ggml_backend_device *ggml_backend_dev_t
    ctypedef ggml_backend_sched *ggml_backend_sched_t

    const char *ggml_backend_buft_name(ggml_backend_buffer_type_t buft)
    ggml_backend_buffer_t ggml_backend_buft_alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) except +
    size_t ggml_backend_buft_get_alignment(ggml_backend_buffer_type_t buft)
    size_t ggml_backend_buft_get_max_size(ggml_backend_buffer_type_t buft)
    size_t ggml_backend_buft_get_alloc_size(ggml_backend_buffer_type_t buft, const ggml_tensor *tensor)
    bool ggml_backend_buft_is_host(ggml_backend_buffer_type_t buft)
    ggml_backend_dev_t ggml_backend_buft_get_device(ggml_backend_buffer_type_t buft)
    void ggml_backend_buffer_free(ggml_backend_buffer_t buffer)
    void *ggml_backend_buffer_get_base(ggml_backend_buffer_t buffer)
    size_t ggml_backend_buffer_get_size(ggml_backend_buffer_t buffer)
    void ggml_backend_buffer_clear(ggml_backend_buffer_t buffer, uint8_t value)
    bool ggml_backend_buffer_is_host(ggml_backend_buffer_t buffer)
    enum ggml_backend_buffer_usage:
        GGML_BACKEND_BUFFER_USAGE_WEIGHTS
        GGML_BACKEND_BUFFER_USAGE_COMPUTE
    void ggml_backend_buffer_set_usage(ggml_backend_buffer_t buffer, ggml_backend_buffer_usage usage)
    ggml_backend_buffer_type_t ggml_backend_buffer_get_type(ggml_backend_buffer_t buffer)
    ggml_backend_buffer_usage ggml_backend_buffer_get_usage(ggml_backend_buffer_t buffer)

    void ggml_backend_free(ggml_backend_t backend)
    ggml_backend_buffer_type_t ggml_backend_get_default_buffer_type(ggml_backend_t backend)
    void ggml_backend_tensor_set(ggml_tensor *tensor, const void *data, size_t offset, size_t size) except +
    void ggml_backend_tensor_set_async(ggml_backend_t backend, ggml_tensor *tensor, const void *data, size_t offset,
                                       size_t size)
    ggml_backend_buffer_type_t ggml_backend_dev_host_buffer_type(ggml_backend_dev_t device)
    ggml_backend_buffer_type_t ggml_backend_cpu_buffer_type()
    void ggml_backend_tensor_get(const ggml_tensor *tensor, void *data, size_t offset, size_t size)
    ggml_backend_dev_t ggml_backend_get_device(ggml_backend_t backend)

    enum ggml_backend_dev_type:
        GGML_BACKEND_DEVICE_TYPE_CPU
        GGML_BACKEND_DEVICE_TYPE_GPU
        GGML_BACKEND_DEVICE_TYPE_IGPU
        GGML_BACKEND_DEVICE_TYPE_ACCEL
        GGML_BACKEND_DEVICE_TYPE_META
    struct ggml_backend_dev_caps:
        bool async "async"
        bool host_buffer
        bool buffer_from_host_ptr
        bool events
        bool mmap_support
    struct ggml_backend_dev_props:
        const char *name
        const char *description
        size_t memory_free
        size_t memory_total
        ggml_backend_dev_type type
        const char *device_id
        ggml_backend_dev_caps caps

    ggml_backend_dev_type get_dev_type "ggml_backend_dev_type" (ggml_backend_dev_t device)
    const char *ggml_backend_dev_name(ggml_backend_dev_t device)
    void ggml_backend_dev_get_props(ggml_backend_dev_t device, ggml_backend_dev_props *props)
    ggml_backend_reg_t ggml_backend_dev_backend_reg(ggml_backend_dev_t device)
    ggml_backend_t ggml_backend_dev_init(ggml_backend_dev_t device, const char *params) except +
    ggml_backend_buffer_type_t ggml_backend_dev_buffer_type(ggml_backend_dev_t device)
    ggml_backend_buffer_t ggml_backend_dev_buffer_from_host_ptr(ggml_backend_dev_t device, void *ptr, size_t size,
                                                                size_t max_tensor_size) except +
    bool ggml_backend_dev_supports_op(ggml_backend_dev_t device, const ggml_tensor *op)

    const char *ggml_backend_reg_name(ggml_backend_reg_t reg)
    size_t ggml_backend_reg_dev_count(ggml_backend_reg_t reg)
    ggml_backend_dev_t ggml_backend_reg_dev_get(ggml_backend_reg_t reg, size_t index)
    void *ggml_backend_reg_get_proc_address(ggml_backend_reg_t reg, const char *name)
    size_t ggml_backend_reg_count()
    ggml_backend_reg_t ggml_backend_reg_get(size_t index)
    size_t ggml_backend_dev_count()
    ggml_backend_dev_t ggml_backend_dev_get(size_t index)
    void ggml_backend_load_all_from_path(const char *dir_path) except +

    ctypedef void (*ggml_backend_set_n_threads_t)(ggml_backend_t backend, int n_threads) noexcept
    ctypedef ggml_backend_buffer_type_t *(*ggml_backend_dev_get_extra_bufts_t)(ggml_backend_dev_t device) noexcept
    ctypedef bool (*ggml_abort_callback)(void *data) noexcept
    ctypedef void (*ggml_backend_set_abort_callback_t)(ggml_backend_t backend, ggml_abort_callback abort_callback,
                                                       void *abort_callback_data) noexcept
    struct ggml_backend_feature:
        const char *name
        const char *value
    ctypedef ggml_backend_feature *(*ggml_backend_get_features_t)(ggml_backend_reg_t reg) noexcept

    ggml_backend_sched_t ggml_backend_sched_new(ggml_backend_t *backends, ggml_backend_buffer_type_t *bufts,
                                                int n_backends, size_t graph_size, bool parallel,
                                                bool op_offload) except +
    void ggml_backend_sched_free(ggml_backend_sched_t sched)
    void ggml_backend_sched_reserve_size(ggml_backend_sched_t sched, ggml_cgraph *measure_graph, size_t *sizes) except +
    bool ggml_backend_sched_reserve(ggml_backend_sched_t sched, ggml_cgraph *measure_graph) except +
    size_t ggml_backend_sched_get_buffer_size(ggml_backend_sched_t sched, ggml_backend_t backend)
    bool ggml_backend_sched_alloc_graph(ggml_backend_sched_t sched, ggml_cgraph *graph) except +
    ggml_status ggml_backend_sched_graph_compute(ggml_backend_sched_t sched, ggml_cgraph *graph) except +
    void ggml_backend_sched_synchronize(ggml_backend_sched_t sched)
    void ggml_backend_sched_set_tensor_backend(ggml_backend_sched_t sched, ggml_tensor *node, ggml_backend_t backend)
    void ggml_backend_sched_split_graph(ggml_backend_sched_t sched, ggml_cgraph *graph) except +
    ggml_backend_t ggml_backend_sched_get_tensor_backend(ggml_backend_sched_t sched, ggml_tensor *node)
    void ggml_backend_sched_reset(ggml_backend_sched_t sched)
    ggml_status ggml_backend_tensor_alloc(ggml_backend_buffer_t buffer, ggml_tensor *tensor, void *addr)


# Functions that live in the CPU backend's library, which a portable build loads at run time: found by name through
# ggml_backend_reg_get_proc_address, or in the library itself, never linked. The name stands behind each.
ctypedef ggml_threadpool *(*threadpool_new_t)(ggml_threadpool_params *params) noexcept nogil  # ggml_threadpool_new
ctypedef void (*threadpool_free_t)(ggml_threadpool *threadpool) noexcept nogil  # ggml_threadpool_free
ctypedef void (*set_threadpool_t)(ggml_backend_t, ggml_threadpool_t) noexcept nogil  # ggml_backend_cpu_set_threadpool
ctypedef ggml_cplan (*graph_plan_t)(const ggml_cgraph *, int, ggml_threadpool *) noexcept nogil  # ggml_graph_plan
ctypedef ggml_status (*graph_compute_t)(ggml_cgraph *, ggml_cplan *) noexcept nogil  # ggml_graph_compute


# Functions of the RPC backend, found in the same way. They connect to a worker, and start threads. The second is
# ggml_backend_rpc_start_server.
ctypedef ggml_backend_reg_t (*rpc_add_server_t)(const char *) noexcept nogil  # ggml_backend_rpc_add_server
ctypedef void (*rpc_serve_t)(const char *, const char *, size_t, size_t, ggml_backend_dev_t *) noexcept nogil
