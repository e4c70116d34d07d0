"""What the operations should compute, in plain numpy.

Arrays have four dimensions in numpy's order, [n3, n2, n1, n0]; a shape in ggml's order is the reverse. Arithmetic is
done in float64 and returned so: the caller knows how exact the tensor's type is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def four(array: NDArray) -> NDArray:
    """The same array with leading dimensions of size 1."""
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def shape_of(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """A shape in ggml's order as numpy's four dimensions."""
    n = [int(d) for d in shape] + [1] * (4 - len(shape))
    return (n[3], n[2], n[1], n[0])


# -- element by element ------------------------------------------------------------------------------------------------


def fill(b: NDArray, like: NDArray) -> NDArray:
    """`b` repeated to the shape of `like`."""
    return np.tile(b, [n // m for n, m in zip(like.shape, b.shape, strict=True)])


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "neg": np.negative,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": _sigmoid,
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu_quick": lambda x: x * _sigmoid(1.702 * x),
    "silu": lambda x: x * _sigmoid(x),
    "exp": np.exp,
    "softplus": lambda x: np.logaddexp(0, x),
    "floor": np.floor,
    "sqr": np.square,
    "sqrt": np.sqrt,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
}


# -- along rows --------------------------------------------------------------------------------------------------------


def rms_norm(x: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def layer_norm(x: Array, eps: float) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + eps)


def l2_norm(x: Array, eps: float) -> Array:
    return x / np.maximum(np.sqrt(np.sum(x * x, axis=-1, keepdims=True)), eps)


def softmax(x: Array, mask: Array | None = None, scale: float = 1.0, sinks: Array | None = None) -> Array:
    """x [n3, heads, queries, keys]; a row that is masked completely is nan, without sinks."""
    scores = x * scale
    if mask is not None:
        rows = mask[:, :, : x.shape[2]]
        scores = scores + np.tile(rows, (x.shape[0] // mask.shape[0], x.shape[1] // mask.shape[1], 1, 1))
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        per_head = sinks.reshape(1, -1, 1, 1)
        top = np.maximum(top, per_head)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(per_head - top)
    return weights / total


# -- shapes ------------------------------------------------------------------------------------------------------------


def permute(x: NDArray, axes: Sequence[int]) -> NDArray:
    """Dimension i (in ggml's order) becomes dimension axes[i]."""
    order = [0] * 4
    for source, target in enumerate(axes):
        order[3 - target] = 3 - source
    return x.transpose(order)


def view(
    x: NDArray, shape: Sequence[int], strides: Sequence[int] | None, offset: int, unit: int, block: int
) -> NDArray:
    """`x` is contiguous and made of blocks of `block` elements that take `unit` bytes."""
    n = [int(d) for d in shape] + [1] * (4 - len(shape))
    blocks = np.ascontiguousarray(x).reshape(-1, block)
    step = [unit, *(int(s) for s in strides or ())]
    for i in range(len(step), 4):
        step.append(unit * (n[0] // block) if i == 1 else step[i - 1] * n[i - 1])
    i3, i2, i1, i0 = np.ogrid[: n[3], : n[2], : n[1], : n[0] // block]
    places = (offset + i0 * step[0] + i1 * step[1] + i2 * step[2] + i3 * step[3]) // unit
    return blocks[places].reshape(n[3], n[2], n[1], n[0])


def repeat(x: NDArray, shape: Sequence[int]) -> NDArray:
    return fill(x, np.empty(shape_of(shape), dtype=np.int8))


def get_rows(table: NDArray, index: NDArray) -> NDArray:
    """table [n3, n2, rows, n], index [1, n3, n2, k] -> [n3, n2, k, n]."""
    out = np.empty((table.shape[0], table.shape[1], index.shape[-1], table.shape[-1]), dtype=table.dtype)
    for i3 in range(table.shape[0]):
        for i2 in range(table.shape[1]):
            out[i3, i2] = table[i3, i2, index[0, i3, i2]]
    return out


def set_rows(table: NDArray, rows: NDArray, index: NDArray) -> NDArray:
    """`table` with `rows` [n3, n2, k, n] written at index [1, n3 or less, n2 or less, k]."""
    out = table.copy()
    for i3 in range(rows.shape[0]):
        for i2 in range(rows.shape[1]):
            out[i3, i2, index[0, i3 % index.shape[1], i2 % index.shape[2]]] = rows[i3, i2]
    return out


# -- products and attention --------------------------------------------------------------------------------------------


def mul_mat(a: Array, b: Array) -> Array:
    """a [.., m, n], b [.., k, n] -> [.., k, m]; `a` serves several of b's outer dimensions in turn."""
    a = np.repeat(np.repeat(a, b.shape[0] // a.shape[0], axis=0), b.shape[1] // a.shape[1], axis=1)
    return b @ a.swapaxes(-1, -2)


def mul_mat_id(experts: Array, b: Array, ids: NDArray) -> Array:
    """experts [1, e, m, n], b [1, k, used or 1, n], ids [1, 1, k, used] -> [1, k, used, m]."""
    rows, used = ids.shape[2:]
    out = np.empty((1, rows, used, experts.shape[2]))
    for row in range(rows):
        for place in range(used):
            out[0, row, place] = experts[0, ids[0, 0, row, place]] @ b[0, row, place % b.shape[2]]
    return out


def rope(
    x: Array, positions: NDArray, n_dims: int, *, mode: str = "norm", factors: Array | None = None,
    freq_base: float = 10000.0, freq_scale: float = 1.0, n_ctx_orig: int = 0, ext_factor: float = 0.0,
    attn_factor: float = 1.0, beta_fast: float = 32.0, beta_slow: float = 1.0,
) -> Array:  # fmt: skip
    """x [n3, n, heads, head_dim]: Su et al. 2021, stretched as in Peng et al. 2023."""
    pairs = np.arange(n_dims // 2)
    angle = positions.reshape(-1, 1) * freq_base ** (-2.0 * pairs / n_dims)
    if factors is not None:
        angle = angle / factors.reshape(-1)[: n_dims // 2]
    size = attn_factor
    theta = angle * freq_scale
    if ext_factor != 0:
        low, high = yarn_range(n_dims, n_ctx_orig, freq_base, beta_fast, beta_slow)
        ramp = 1 - np.clip((pairs - low) / max(0.001, high - low), 0, 1)
        theta = theta * (1 - ramp * ext_factor) + angle * ramp * ext_factor
        size *= 1 + 0.1 * math.log(1 / freq_scale)
    cos, sin = np.cos(theta)[:, None] * size, np.sin(theta)[:, None] * size
    first, second = (slice(0, n_dims, 2), slice(1, n_dims, 2)) if mode == "norm" else (
        slice(0, n_dims // 2), slice(n_dims // 2, n_dims))  # fmt: skip
    out = np.array(x, dtype=np.float64)
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def yarn_range(n_dims: int, n_ctx_orig: int, base: float, fast: float, slow: float) -> tuple[float, float]:
    def pair(turns: float) -> float:
        return n_dims * math.log(n_ctx_orig / (turns * 2 * math.pi)) / (2 * math.log(base))

    return max(0, math.floor(pair(fast))), min(n_dims - 1, math.ceil(pair(slow)))


def flash_attention(
    q: Array, k: Array, v: Array, mask: Array | None = None, scale: float = 1.0, *, softcap: float = 0.0,
    sinks: Array | None = None,
) -> Array:  # fmt: skip
    """q [n3, heads, queries, d], k, v [n3, kv_heads, keys, d] -> [n3, queries, heads, dv]; masked rows are 0."""
    group = q.shape[1] // k.shape[1]
    scores = q @ np.repeat(k, group, axis=1).swapaxes(-1, -2) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    weights = np.nan_to_num(softmax(scores, mask, 1.0, sinks))
    return (weights @ np.repeat(v, group, axis=1)).swapaxes(1, 2)


def paged_attention(
    q: Array, k: Array, v: Array, parts: NDArray, cells: NDArray, scale: float = 1.0, *, softcap: float = 0.0,
    sinks: Array | None = None,
) -> Array:  # fmt: skip
    """q [1, heads, rows, d], k, v [1, kv_heads, cells, d] -> [1, rows, heads, dv], over the cells of each row."""
    out = np.zeros((1, q.shape[2], q.shape[1], v.shape[3]))
    for row, (begin, end) in enumerate(parts):
        listed = cells[begin:end]
        if len(listed):
            out[:, row : row + 1] = flash_attention(
                q[:, :, row : row + 1], k[:, :, listed], v[:, :, listed], None, scale, softcap=softcap, sinks=sinks
            )
    return out


def causal_conv(x: Array, taps: Array, rows: NDArray, bounds: NDArray, slots: NDArray, states: Array) -> Array:
    """x [n, channels], taps [taps, channels]; `states` [slots, channels * (taps - 1)] is changed -> [n, channels]."""
    out, n_taps = np.zeros_like(x), len(taps)
    for (begin, end), (read, write) in zip(bounds, slots, strict=True):
        before = states[read].reshape(n_taps - 1, -1) if read < len(states) else np.zeros((n_taps - 1, x.shape[1]))
        seen = np.concatenate((before, x[rows[begin:end]]))
        for t, row in enumerate(rows[begin:end]):
            out[row] = (seen[t : t + n_taps] * taps).sum(axis=0)
        if write < len(states) and end > begin:
            states[write] = seen[len(seen) - n_taps + 1 :].reshape(-1)
    return out


STATE_COLUMNS = 32
"""Columns of a block of a head's state; the last block may have fewer."""


def blocked(state: Array) -> Array:
    """A state [heads, rows, columns] as it is stored, block by block."""
    begins = range(0, state.shape[2], STATE_COLUMNS)
    return np.concatenate([head[:, at : at + STATE_COLUMNS].reshape(-1) for head in state for at in begins])


def unblocked(stored: Array, shape: tuple[int, int, int]) -> Array:
    """The state [heads, rows, columns] of what `blocked` returns."""
    places = blocked(np.arange(stored.size).reshape(shape))
    state = np.empty(stored.size)
    state[places] = stored
    return state.reshape(shape)


def gated_delta_net(
    q: Array, k: Array, v: Array, g: Array, beta: Array, segments: tuple[NDArray, NDArray, NDArray], states: Array, *,
    grouped: bool,
) -> Array:  # fmt: skip
    """q, k [n, key_heads, dk], v [n, heads, dv], g [n, heads] or [n, heads, dk], beta [n, heads].

    `states` [slots, heads * dk * dv] is changed.
    """
    out, heads = np.zeros_like(v), v.shape[1]
    shared = k.shape[1]
    of = [h // (heads // shared) if grouped else h % shared for h in range(heads)]
    rows, bounds, slots = segments
    for (begin, end), (read, write) in zip(bounds, slots, strict=True):
        shape = (heads, k.shape[2], v.shape[2])
        state = unblocked(states[read], shape) if read < len(states) else np.zeros(shape)
        for row in rows[begin:end]:
            state *= np.exp(g[row]).reshape(heads, -1, 1)
            delta = beta[row][:, None] * (v[row] - np.einsum("hkv,hk->hv", state, k[row][of]))
            state += k[row][of][:, :, None] * delta[:, None]
            out[row] = np.einsum("hkv,hk->hv", state, q[row][of])
        if write < len(states) and end > begin:
            states[write] = blocked(state)
    return out


LEAST_SCALE = 2.0**-40
"""Below it a scale of `ssm_scan` goes into the matrix."""


def ssm_scan(
    x: Array, dt: Array, a: Array, b: Array, c: Array, d: Array, segments: tuple[NDArray, NDArray, NDArray],
    states: Array,
) -> Array:  # fmt: skip
    """x [n, heads, dim], dt [n, heads], a, d [heads], b, c [n, groups, d_state]; `states` [slots, ...] is changed.

    A state has the scales of all blocks, by which these are multiplied, behind the matrices; 0 stands for 1.
    """
    out, heads, dim = np.zeros_like(x), x.shape[1], x.shape[2]
    rows, bounds, slots = segments
    of, n_scales = np.arange(heads) // (heads // b.shape[1]), heads * -(-dim // STATE_COLUMNS)
    for (begin, end), (read, write) in zip(bounds, slots, strict=True):
        matrices, scales = np.zeros((heads, b.shape[2], dim)), np.ones((heads, n_scales // heads))
        if read < len(states):
            matrices = unblocked(states[read, :-n_scales], matrices.shape)
            scales = states[read, -n_scales:].reshape(scales.shape)
            scales = np.where(scales == 0, 1, scales)
        for row in rows[begin:end]:
            decayed = scales * np.exp(dt[row] * a)[:, None]
            kept = (decayed >= LEAST_SCALE) & (decayed <= 1)
            scales, shrink = np.where(kept, decayed, 1), np.where(kept, 1, decayed)
            moved = b[row][of][:, :, None] * (dt[row][:, None] * x[row] / by_column(scales, dim))[:, None]
            matrices = matrices * by_column(shrink, dim)[:, None] + moved
            y = np.einsum("hsd,hs->hd", matrices, c[row][of]) * by_column(scales, dim)
            out[row] = y + d[:, None] * x[row]
        if write < len(states) and end > begin:
            states[write] = np.concatenate((blocked(matrices), scales.reshape(-1)))
    return out


def by_column(scales: Array, columns: int) -> Array:
    """scales [heads, blocks] of states, for each column: [heads, columns]."""
    return np.repeat(scales, STATE_COLUMNS, axis=1)[:, :columns]


# -- types -------------------------------------------------------------------------------------------------------------


def to_bf16(x: NDArray) -> NDArray[np.float32]:
    """Rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)
