"""Operations on images, [width, height, channels, n]: convolution, pooling, padding and other sizes; all in f32."""

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ops.operands cimport dense_f32
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, describe, graph_of, wrap
from ollama_engine.ml.graph.types cimport check_size, first_of, whole

from ollama_engine.ml.ops.nn import mul_mat
from ollama_engine.ml.ops.shape import cont, permute, reshape, view

cdef dict _POOLS = {"avg": lib.GGML_OP_POOL_AVG, "max": lib.GGML_OP_POOL_MAX}
cdef dict _SCALES = {
    "nearest": lib.GGML_SCALE_MODE_NEAREST, "bilinear": lib.GGML_SCALE_MODE_BILINEAR,
    "bicubic": lib.GGML_SCALE_MODE_BICUBIC,
}  # fmt: skip

# ggml calculates places in float, which is exact enough up to here, and bytes between channels in 32 bits.
cdef int64_t MAX_SIDE = 1 << 20
cdef int64_t MAX_STRIDE = (1LL << 31) - 1


cdef int _read_pair(str op, str name, object value, int64_t least, int64_t *out) except -1:
    """Horizontal and vertical number; a single number stands for both."""
    cdef tuple given = first_of(value, 3)
    if len(given) == 1:
        given = given * 2
    if len(given) != 2:
        raise ShapeError(f"{op}: {name} is a number or (horizontal, vertical), got {given}")
    out[0], out[1] = whole(given[0]), whole(given[1])
    if not (least <= out[0] <= MAX_SIDE and least <= out[1] <= MAX_SIDE):
        raise ShapeError(f"{op}: {name} is {least} to {MAX_SIDE}, got {given}")
    return 0


cdef int64_t _places(str op, int64_t side, int64_t window, int64_t stride, int64_t padding) except -1:
    """How often a window fits into a side with padding at both ends."""
    if side > MAX_SIDE:
        raise ShapeError(f"{op}: sides are up to {MAX_SIDE}, got {side}")
    if window > side + 2 * padding:
        raise ShapeError(f"{op}: the window of {window} is larger than the image's side of {side}, padded by {padding}")
    return (side + 2 * padding - window) // stride + 1


cdef struct Windows:
    int64_t stride[2]
    int64_t padding[2]
    int64_t dilation[2]


cdef Windows _windows(str op, object stride, object padding, object dilation) except *:
    cdef Windows w
    _read_pair(op, "stride", stride, 1, w.stride)
    _read_pair(op, "padding", padding, 0, w.padding)
    _read_pair(op, "dilation", dilation, 1, w.dilation)
    return w


cdef Tensor _im2col(str op, Tensor kernel, Tensor image, Windows w):
    cdef int64_t ne[4]
    cdef int i
    cdef Graph graph = graph_of(image, kernel)
    cdef lib.ggml_tensor *k = kernel.ptr
    cdef lib.ggml_tensor *x = dense_f32(graph, image, op)
    if k.ne[2] != x.ne[2]:
        raise ShapeError(f"{op}: the kernel {describe(kernel)} has {k.ne[2]} channels, {describe(image)} has {x.ne[2]}")
    if k.ne[0] > MAX_SIDE or k.ne[1] > MAX_SIDE or k.ne[0] * k.ne[1] > MAX_STRIDE // k.ne[2]:
        raise ShapeError(f"{op}: the kernel {describe(kernel)} is too large")
    for i in range(2):
        ne[1 + i] = _places(op, x.ne[i], w.dilation[i] * (k.ne[i] - 1) + 1, w.stride[i], w.padding[i])
    if x.nb[3] > <size_t>MAX_STRIDE:
        raise ShapeError(f"{op}: an image has less than 2**31 bytes, got {describe(image)}")
    ne[0], ne[3] = k.ne[0] * k.ne[1] * k.ne[2], x.ne[3]
    check_size(ne)
    return wrap(graph, lib.ggml_im2col(graph.ctx, k, x, w.stride[0], w.stride[1], w.padding[0], w.padding[1],
                                       w.dilation[0], w.dilation[1], True, lib.GGML_TYPE_F32))


def im2col(Tensor kernel not None, Tensor image not None, *, stride=1, padding=0, dilation=1):
    """im2col: the pixels of image [w, h, c, n] under each place of kernel [kw, kh, c, any] -> [kw * kh * c, ow, oh, n].

    Only the shape of `kernel` matters. Beyond the edges are zeros. Numbers are for both directions, or (horizontal,
    vertical). ow = (w + 2 padding - dilation (kw - 1) - 1) // stride + 1, and likewise oh.
    """
    cdef Windows w = _windows("im2col", stride, padding, dilation)
    return _im2col("im2col", kernel, image, w)


def conv_2d(Tensor kernel not None, Tensor image not None, *, stride=1, padding=0, dilation=1):
    """Convolution (cross-correlation, as in neural networks) of image [w, h, c, n] with kernel [kw, kh, c, m], without
    bias: [ow, oh, m, n]. The kernel is contiguous f32, f16 or bf16. Sizes and options: `im2col`.
    """
    cdef Windows w = _windows("conv_2d", stride, padding, dilation)
    cdef Tensor columns = _im2col("conv_2d", kernel, image, w)
    cdef lib.ggml_tensor *k = kernel.ptr
    if k.type not in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16, lib.GGML_TYPE_BF16) or not lib.ggml_is_contiguous(k):
        raise ShapeError(f"conv_2d: the kernel is contiguous f32, f16 or bf16, got {describe(kernel)}")
    cdef int64_t across = columns.ptr.ne[1], down = columns.ptr.ne[2]
    flat = view(kernel, (columns.ptr.ne[0], k.ne[3]), ctx=columns.owner)
    rows = reshape(columns, columns.ptr.ne[0], across * down, columns.ptr.ne[3])
    out = cont(permute(mul_mat(flat, rows), 1, 0, 2, 3))
    return reshape(out, across, down, k.ne[3], columns.ptr.ne[3])


def pool_2d(Tensor a not None, kernel, *, stride=None, padding=0, str mode not None="avg"):
    """Mean ("avg") or largest value ("max") of each window of a [w, h, ...] -> [ow, oh, ...].

    `stride` is the kernel's size unless given. A mean counts zeros beyond the edges; padding is at most half of the
    kernel. Numbers are for both directions, or (horizontal, vertical).
    """
    cdef int64_t size[2]
    cdef int64_t step[2]
    cdef int64_t beyond[2]
    cdef int64_t ne[4]
    cdef int i
    _read_pair("pool_2d", "kernel", kernel, 1, size)
    _read_pair("pool_2d", "stride", (size[0], size[1]) if stride is None else stride, 1, step)
    _read_pair("pool_2d", "padding", padding, 0, beyond)
    found = _POOLS.get(mode)
    if found is None:
        raise ShapeError(f"pool_2d: mode is avg or max, got {mode!r}")
    cdef Graph graph = graph_of(a)
    cdef lib.ggml_tensor *x = dense_f32(graph, a, "pool_2d")
    for i in range(2):
        if beyond[i] > size[i] // 2:
            raise ShapeError(f"pool_2d: padding is at most half of the kernel's {size[i]}, got {beyond[i]}")
        ne[i] = _places("pool_2d", x.ne[i], size[i], step[i], beyond[i])
        ne[i + 2] = x.ne[i + 2]
    if size[0] > MAX_STRIDE // size[1]:
        raise ShapeError(f"pool_2d: the kernel {(size[0], size[1])} is too large")
    check_size(ne)
    return wrap(graph, lib.ggml_pool_2d(graph.ctx, x, <lib.ggml_op_pool><int>found, size[0], size[1], step[0], step[1],
                                        beyond[0], beyond[1]))


cdef int _read_widths(tuple widths, int *out) except -1:
    """(before, after) of up to four dimensions."""
    cdef int64_t width
    cdef Py_ssize_t i, j
    if not 1 <= len(widths) <= 4:
        raise ShapeError(f"pad: 1 to 4 pairs (before, after), one for each dimension, got {widths}")
    for i in range(4):
        given = first_of(widths[i], 3) if i < len(widths) else (0, 0)
        if len(<tuple>given) != 2:
            raise ShapeError(f"pad: widths are pairs (before, after), got {widths}")
        for j in range(2):
            width = whole((<tuple>given)[j])
            if not 0 <= width < 1 << 31:
                raise ShapeError(f"pad: widths are not negative and below 2**31, got {widths}")
            out[2 * i + j] = width
    return 0


def pad(Tensor a not None, *widths, str mode not None="zero"):
    """`a` with more elements around it: a pair (before, after) for each dimension, from the first on.

    mode "zero"; "circular" (as if `a` were repeated; at most its size); "reflect" (mirrored at the edge element; only
    the first dimension, less than its size).
    """
    cdef int w[8]
    cdef int64_t ne[4]
    cdef int i
    _read_widths(widths, w)
    if mode not in ("zero", "circular", "reflect"):
        raise ShapeError(f"pad: mode is zero, circular or reflect, got {mode!r}")
    cdef Graph graph = graph_of(a)
    cdef lib.ggml_tensor *x = dense_f32(graph, a, "pad")
    for i in range(4):
        ne[i] = x.ne[i] + w[2 * i] + w[2 * i + 1]
        if mode == "circular" and max(w[2 * i], w[2 * i + 1]) > x.ne[i]:
            raise ShapeError(f"pad: circular widths are at most the size of their dimension, {describe(a)}")
        if mode == "reflect" and (max(w[2 * i], w[2 * i + 1]) >= x.ne[i] if i == 0 else w[2 * i] | w[2 * i + 1]):
            raise ShapeError("pad: reflect is for the first dimension, and widths are below its size; got "
                             f"{widths} for {describe(a)}")
    check_size(ne)
    if mode == "reflect":
        return wrap(graph, lib.ggml_pad_reflect_1d(graph.ctx, x, w[0], w[1]))
    if mode == "circular":
        return wrap(graph, lib.ggml_pad_ext_circular(graph.ctx, x, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]))
    return wrap(graph, lib.ggml_pad_ext(graph.ctx, x, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]))


def interpolate(Tensor a not None, width, height, str mode not None="nearest", *, bint align_corners=False,
                bint antialias=False):
    """`a` [w, h, ...] in another size, [width, height, ...]: mode "nearest", "bilinear" or "bicubic" (alpha -0.75).

    Pixels are areas, as torch has it, or points whose corners fall together (`align_corners`). `antialias`, for
    bilinear alone, widens the filter where the image gets smaller.
    """
    cdef int64_t ne[4]
    cdef int i
    ne[0], ne[1] = whole(width), whole(height)
    found = _SCALES.get(mode)
    if found is None:
        raise ShapeError(f"interpolate: mode is nearest, bilinear or bicubic, got {mode!r}")
    if antialias and (mode != "bilinear" or align_corners):
        raise ShapeError("interpolate: antialias goes with bilinear alone, without align_corners")
    cdef Graph graph = graph_of(a)
    cdef lib.ggml_tensor *x = dense_f32(graph, a, "interpolate")
    ne[2], ne[3] = x.ne[2], x.ne[3]
    check_size(ne)
    for i in range(4):
        if max(ne[i], x.ne[i]) > MAX_SIDE:
            raise ShapeError(f"interpolate: dimensions are up to {MAX_SIDE}, got {describe(a)} to {(ne[0], ne[1])}")
    cdef int flags = found
    if align_corners:
        flags |= lib.GGML_SCALE_FLAG_ALIGN_CORNERS
    if antialias:
        flags |= lib.GGML_SCALE_FLAG_ANTIALIAS
    return wrap(graph, lib.ggml_interpolate(graph.ctx, x, ne[0], ne[1], ne[2], ne[3], flags))
