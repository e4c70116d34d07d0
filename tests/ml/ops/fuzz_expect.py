"""For a call of an operation with random operands: what it should give, and how exactly.

Bounds follow what the kernels do: f16 tables for gelu, activations rounded to f16, bf16 or 8 bits in products with
such weights, accumulation of attention values in f16. Errors of operands are carried through by rough gains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ml.ops import reference as ref
from tests.ml.ops.fuzz_values import Value, unit_of


@dataclass
class Expected:
    """Values in numpy's order (None: not comparable), their type, and the absolute error allowed."""

    array: NDArray
    dtype: str = "f32"
    tol: NDArray | float = 0.0
    wild: bool = False
    order_of: NDArray | None = None
    """For sorted places: the values which they sort."""
    descending: bool = False


def top(x: NDArray) -> float:
    return float(np.abs(x).max())


def f64(value: Value) -> NDArray[np.float64]:
    return value.array.astype(np.float64)


def _elementwise(out: NDArray, *terms: float) -> Expected:
    return Expected(out, tol=sum(terms) + 2e-6 * (1 + np.abs(out)))


# -- arithmetic --------------------------------------------------------------------------------------------------------


def add(a: Value, b: Value) -> Expected:
    return _elementwise(f64(a) + ref.fill(f64(b), a.array), a.tol + b.tol)


def sub(a: Value, b: Value) -> Expected:
    return _elementwise(f64(a) - ref.fill(f64(b), a.array), a.tol + b.tol)


def mul(a: Value, b: Value) -> Expected:
    return _elementwise(f64(a) * ref.fill(f64(b), a.array), a.tol * top(b.array) + b.tol * top(a.array))


def div(a: Value, b: Value) -> Expected:
    over = ref.fill(f64(b), a.array)
    least = np.abs(over).min()
    error = a.tol + b.tol
    gain = (1 / least + top(a.array) / least**2) if error else 0.0
    return _elementwise(f64(a) / over, error * gain if error else 0.0)


def unary(a: Value, name: str) -> Expected:
    x = f64(a)
    out = ref.ACTIVATIONS[name](x)
    if name in ("gelu", "gelu_quick"):  # looked up for x rounded to f16
        return _elementwise(out, 1.2 * a.tol, 2e-3 * (1 + top(x)))
    gain = {"exp": top(out), "sqr": 2 * top(x), "sqrt": np.inf, "log": np.inf, "floor": np.inf}.get(name, 1.2)
    if a.tol and np.isinf(gain):  # nothing can be said near 0, or near a whole number
        return Expected(out, wild=True)
    return _elementwise(out, a.tol * gain if a.tol else 0.0, 1e-6 * top(x) * (top(out) if name == "exp" else 1))


def _named(name: str) -> Callable[[Value], Expected]:
    return lambda a: unary(a, name)


def gelu_exact(a: Value) -> Expected:
    return unary(a, "gelu_erf")


def gelu_tanh(a: Value) -> Expected:
    x = f64(a)
    exact = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return _elementwise(exact, 1.2 * a.tol, 1e-6 * top(x))


def soft_cap(a: Value, cap: float) -> Expected:
    return _elementwise(cap * np.tanh(f64(a) / cap), 1.2 * a.tol, 1e-7 * cap)


def hadamard(a: Value, block: int) -> Expected:
    matrix = np.ones((1, 1))
    while len(matrix) < block:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = f64(a)
    runs = x.reshape(-1, block) @ matrix / np.sqrt(block)
    return _elementwise(runs.reshape(x.shape), np.sqrt(block) * a.tol, 1e-6 * np.sqrt(block) * top(x))


def glu(gate: Value, up: Value, name: str = "silu") -> Expected:
    active = unary(gate, name)
    error = float(np.max(active.tol))
    return _elementwise(active.array * f64(up), error * top(up.array) + up.tol * top(active.array))


def clamped_swiglu(gate: Value, up: Value, gain: float, limit: float) -> Expected:
    g, u = np.minimum(f64(gate), limit), np.clip(f64(up), -limit, limit)
    out = g / (1 + np.exp(-gain * g)) * (u + 1)
    return _elementwise(out, 3 * (gate.tol + up.tol) * (1 + limit) ** 2, 1e-5 * (1 + top(out)))


def scale(a: Value, factor: float, bias: float = 0.0) -> Expected:
    return _elementwise(f64(a) * float(factor) + float(bias), a.tol * abs(float(factor)),
                        1e-6 * (top(a.array) * abs(float(factor)) + abs(float(bias))))  # fmt: skip


def clamp(a: Value, low: float, high: float) -> Expected:
    return _elementwise(np.clip(f64(a), float(low), float(high)), a.tol)


def xielu(a: Value, alpha_n: float, alpha_p: float, beta: float, eps: float) -> Expected:
    x, p, n = f64(a), np.logaddexp(0, alpha_p), beta + np.logaddexp(0, alpha_n)
    with np.errstate(over="ignore"):
        out = np.where(x > 0, p * x * x, (np.expm1(np.minimum(x, eps)) - x) * n) + beta * x
    steepness = 2 * p * top(a.array) + abs(n) + abs(beta)
    return _elementwise(out, a.tol * steepness + 1e-5 * top(out))


# -- rows --------------------------------------------------------------------------------------------------------------


def _norm(out: NDArray, a: Value, size: NDArray) -> Expected:
    return _elementwise(out, (a.tol + 2e-6 * top(a.array)) / max(1e-30, float(size.min())) * 2)


def rms_norm(a: Value, eps: float) -> Expected:
    x = f64(a)
    return _norm(ref.rms_norm(x, float(eps)), a, np.sqrt(np.mean(x * x, axis=-1) + float(eps)))


def layer_norm(a: Value, eps: float) -> Expected:
    x = f64(a)
    return _norm(ref.layer_norm(x, float(eps)), a, np.sqrt(np.var(x, axis=-1) + float(eps)))


def l2_norm(a: Value, eps: float) -> Expected:
    x = f64(a)
    return _norm(ref.l2_norm(x, float(eps)), a, np.maximum(np.sqrt(np.sum(x * x, axis=-1)), float(eps)))


def sum_rows(a: Value) -> Expected:
    out = f64(a).sum(axis=-1, keepdims=True)
    return _elementwise(out, a.array.shape[-1] * (a.tol + 1e-6 * top(a.array)))


def mean(a: Value) -> Expected:
    return _elementwise(f64(a).mean(axis=-1, keepdims=True), a.tol + 2e-6 * top(a.array))


def argsort(a: Value, descending: bool = False) -> Expected:
    return Expected(np.empty(a.array.shape), "i32", a.tol, order_of=f64(a), descending=bool(descending))


def top_k(a: Value, k: int) -> Expected:
    return Expected(np.empty((*a.array.shape[:3], int(k))), "i32", a.tol, order_of=f64(a), descending=True)


# -- shapes ------------------------------------------------------------------------------------------------------------


def _moved(a: Value, array: NDArray) -> Expected:
    return Expected(array, a.dtype, a.tol)


def view(t: Value, shape: Any, strides: Any = None, offset: int = 0, ctx: object = None) -> Expected:
    dims = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
    steps = None if strides is None else tuple(np.atleast_1d(strides).tolist())  # one number is as good as a tuple
    unit, block = unit_of(t.dtype)
    return _moved(t, ref.view(t.array, dims, steps, int(offset), unit, block))


def reshape(t: Value, *shape: int) -> Expected:
    return _moved(t, np.ascontiguousarray(t.array).reshape(ref.shape_of(shape)))


def permute(t: Value, *axes: int) -> Expected:
    return _moved(t, ref.permute(t.array, axes))


def transpose(t: Value) -> Expected:
    return permute(t, 1, 0, 2, 3)


def cont(t: Value) -> Expected:
    return _moved(t, t.array)


def concat(a: Value, b: Value, axis: int) -> Expected:
    return Expected(np.concatenate([a.array, b.array], axis=3 - int(axis)), a.dtype, max(a.tol, b.tol))


def repeat(t: Value, *shape: int) -> Expected:
    return _moved(t, ref.repeat(t.array, shape))


def _converted(array: NDArray, dtype: str, tol: float) -> Expected:
    """`array` rounded to a type; quantized ones may be off by one step of their block."""
    if dtype == "f32":
        return Expected(array.astype(np.float64), dtype, tol)
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return Expected(array.astype(np.float32).astype(np.float16).astype(np.float64), dtype, tol + 1e-6)
    if dtype == "bf16":
        return Expected(ref.to_bf16(array).astype(np.float64), dtype, tol + 1e-2 * np.abs(array))
    steps = {"q8_0": 127, "q5_1": 15, "q5_0": 15}.get(dtype, 7)
    blocks = np.abs(array).reshape(-1, 32).max(axis=1, keepdims=True)
    return Expected(
        array.astype(np.float64), dtype, tol + 1e-6 + (np.tile(blocks, 32) / steps * 1.02).reshape(array.shape)
    )


def cast(t: Value, dtype: str) -> Expected:
    return _converted(t.array, dtype, t.tol)


def copy(source: Value, into: Value) -> Expected:
    return _converted(np.ascontiguousarray(source.array).reshape(into.array.shape), into.dtype, source.tol)


def get_rows(table: Value, index: Value) -> Expected:
    out = ref.get_rows(table.array, index.array)
    return Expected(out, "i32" if table.dtype == "i32" else "f32", table.tol + 1e-6 * np.abs(out))


def set_rows(table: Value, rows: Value, index: Value) -> Expected:
    written = _converted(np.ascontiguousarray(rows.array), table.dtype, rows.tol)
    out = ref.set_rows(f64(table), written.array, index.array)
    tol = ref.set_rows(np.full(table.array.shape, 1e-6), np.broadcast_to(written.tol, rows.array.shape), index.array)
    return Expected(out, table.dtype, tol)


# -- products and attention --------------------------------------------------------------------------------------------

ROUNDING = {"f32": 3e-6, "f16": 2e-3, "bf16": 1.2e-2}
QUANTIZED_ROUNDING = 0.07
"""|error| <= sqrt(256) / 254 of the activations' norm, for 8 bits in blocks of 256."""


def mul_mat_error(weight: Value, sizes: NDArray) -> NDArray:
    """The error of dot products with weights of this type, where `sizes` are the products of the two norms."""
    return ROUNDING.get(weight.dtype, QUANTIZED_ROUNDING) * sizes + 1e-5


def mul_mat(a: Value, b: Value, precise: bool = False) -> Expected:
    x, y = f64(a), f64(b)
    sizes = ref.mul_mat(np.linalg.norm(x, axis=-1, keepdims=True), np.linalg.norm(y, axis=-1, keepdims=True))
    error = mul_mat_error(a, sizes)
    return Expected(ref.mul_mat(x, y), tol=error + (b.tol * top(x) + a.tol * top(y)) * x.shape[-1])


def mul_mat_id(experts: Value, b: Value, ids: Value, instructions: str | None = None) -> Expected:
    x, y = f64(experts), f64(b)
    sizes = ref.mul_mat_id(
        np.linalg.norm(x, axis=-1, keepdims=True), np.linalg.norm(y, axis=-1, keepdims=True), ids.array
    )
    error = ROUNDING.get(experts.dtype, QUANTIZED_ROUNDING) * sizes
    return Expected(ref.mul_mat_id(x, y, ids.array), tol=error + 1e-5 + b.tol * top(x) * x.shape[-1])


def add_id(a: Value, rows: Value, ids: Value) -> Expected:
    return Expected(f64(a) + f64(rows)[0, 0][ids.array[0, 0]], tol=a.tol + rows.tol + 1e-6)


def weighted_sum(x: Value, weights: Value) -> Expected:
    a, w = f64(x), f64(weights)
    sizes = np.abs(a * w).sum(-2)[:, None]
    return Expected((a * w).sum(-2)[:, None], tol=1e-5 * (sizes + 1) + x.tol * top(w) * a.shape[-2])


def rope(x: Value, positions: Value, n_dims: int, *, factors: Value | None = None, **options: Any) -> Expected:
    options = {k: v if isinstance(v, str) else float(v) for k, v in options.items()}
    divide = None if factors is None else f64(factors)
    offset = int(options.pop("offset", 0))
    out = f64(x).copy()
    out[..., offset:] = ref.rope(out[..., offset:], positions.array, int(n_dims), factors=divide, **options)
    return rope_error(x, positions, out, divide, options)


def rope_error(x: Value, positions: Value, out: NDArray, divide: NDArray | None, options: dict[str, Any]) -> Expected:
    """Rotated values with their error, which grows with the angles."""
    turns = top(positions.array) * abs(options.get("freq_scale", 1.0)) / (1 if divide is None else np.abs(divide).min())
    if options.get("ext_factor"):
        turns += top(positions.array) * (1 + abs(options["ext_factor"])) * max(1.0, abs(options.get("freq_scale", 1.0)))
    size = 2 * top(out) + abs(options.get("attn_factor", 1.0)) * top(x.array)
    tol = 3 * x.tol + size * (1e-5 + 3e-6 * turns) + (2e-3 * size if x.dtype == "f16" else 0)
    return Expected(out, x.dtype, tol, wild=x.dtype == "f16" and top(out) > 6e4)


def softmax(a: Value, mask: Value | None = None, scale: float = 1.0, sinks: Value | None = None) -> Expected:
    x = f64(a)
    out = ref.softmax(x, None if mask is None else f64(mask), float(scale), None if sinks is None else f64(sinks))
    error = abs(float(scale)) * (a.tol + 1e-6 * top(x)) + (mask.tol if mask else 0) + (sinks.tol if sinks else 0)
    return Expected(out, tol=2e-5 + 4 * error)


def flash_attention(q: Value, k: Value, v: Value, mask: Value | None = None, scale: float = 1.0, *,
                    softcap: float = 0.0, sinks: Value | None = None) -> Expected:  # fmt: skip
    queries, keys, values = f64(q), f64(k), f64(v)
    out = ref.flash_attention(queries, keys, values, None if mask is None else f64(mask), float(scale),
                              softcap=float(softcap), sinks=None if sinks is None else f64(sinks))  # fmt: skip
    largest = np.linalg.norm(queries, axis=-1).max() * np.linalg.norm(keys, axis=-1).max() * abs(float(scale))
    scores = ROUNDING.get(k.dtype, 0.03) * largest + q.tol * top(keys) * keys.shape[-1] + 1e-5
    rounding = 4e-3 if v.dtype == "f16" else 1e-4
    return Expected(out, tol=top(values) * (rounding + min(2.0, 4 * scores)) + 1e-5)


def paged_attention(q: Value, k: Value, v: Value, parts: Value, cells: Value, scale: float = 1.0, *,
                     softcap: float = 0.0, sinks: Value | None = None, **_: object) -> Expected:  # fmt: skip
    queries, keys = f64(q), f64(k)
    if not 0 <= parts.array.min() <= parts.array.max() <= cells.array.size:
        raise IndexError("a row reads cells behind the list")  # a slice would be empty
    out = ref.paged_attention(queries, keys, f64(v), parts.array.reshape(-1, 2), cells.array.reshape(-1), float(scale),
                               softcap=float(softcap), sinks=None if sinks is None else f64(sinks))  # fmt: skip
    largest = np.linalg.norm(queries, axis=-1).max() * np.linalg.norm(keys, axis=-1).max() * abs(float(scale))
    rounded = 1e-6 if k.dtype == "f32" else keys.shape[-1] ** 0.5 / 32_766  # at most: keys and queries have 16 bits
    scores = rounded * largest + q.tol * top(keys) * keys.shape[-1] + 1e-5
    return Expected(out, tol=top(f64(v)) * (1e-5 + min(2.0, 4 * scores)) + 1e-5)


def _matrix(value: Value) -> Any:
    return f64(value)[0, 0]


def _states(states: Value | None) -> Any:
    return np.zeros((0, 1)) if states is None else _matrix(states).copy()


def _segments(rows: Value, bounds: Value, slots: Value, n_slots: int) -> tuple[NDArray, NDArray, NDArray]:
    """Raises IndexError for numbers out of range."""
    arrays = rows.array.reshape(-1), bounds.array.reshape(-1, 2), slots.array.reshape(-1, 2)
    for array, most in zip(arrays, (rows.array.size - 1, rows.array.size, n_slots), strict=True):
        if array.size and not 0 <= array.min() <= array.max() <= most:
            raise IndexError
    return arrays


def causal_conv(x: Value, weight: Value, rows: Value, bounds: Value, slots: Value, states: Value | None = None, *,
                bias: Value | None = None, silu: object = False, gated: object = False) -> Expected:  # fmt: skip
    taps, stored = _matrix(weight).T, _states(states)
    segments = _segments(rows, bounds, slots, len(stored))
    before, after, inputs = np.split(_matrix(x), 3, axis=-1) if gated else (1.0, 1.0, _matrix(x))
    out = ref.causal_conv(before * inputs, taps, *segments, stored)
    largest = max(top(before * inputs), top(_states(states)) if stored.size else 0.0)
    tol = (1e-5 * largest + x.tol) * len(taps) * top(f64(weight)) + 1e-6
    if bias is not None:
        out, tol = out + f64(bias).reshape(-1), tol + 1e-5 * top(f64(bias))
    out, tol = after * out, tol * max(1.0, float(np.abs(after).max()))
    return Expected((ref.ACTIVATIONS["silu"](out) if silu else out)[None, None], tol=1.2 * tol)


def gated_delta_net(q: Value, k: Value, v: Value, g: Value, beta: Value, rows: Value, bounds: Value, slots: Value,
                    states: Value | None = None, *, grouped: object = False) -> Expected:  # fmt: skip
    stored = _states(states)
    segments = _segments(rows, bounds, slots, len(stored))
    decays = f64(g)[0] if g.array.size > beta.array.size else _matrix(g)
    out = ref.gated_delta_net(f64(q)[0], f64(k)[0], f64(v)[0], decays, _matrix(beta), segments, stored,
                              grouped=bool(grouped))  # fmt: skip
    return Expected(out[None], tol=1e-3 * (1 + top(out)))


def ssm_scan(x: Value, dt: Value, a: Value, b: Value, c: Value, rows: Value, bounds: Value, slots: Value,
             states: Value | None = None, *, d: Value | None = None) -> Expected:  # fmt: skip
    stored = _states(states)
    segments = _segments(rows, bounds, slots, len(stored))
    decays, skip = f64(a).reshape(-1), np.zeros(a.array.size) if d is None else f64(d).reshape(-1)
    out = ref.ssm_scan(f64(x)[0], _matrix(dt), decays, f64(b)[0], f64(c)[0], skip, segments, stored)
    return Expected(out[None], tol=1e-3 * (1 + top(out)))


EXPECT: dict[str, Callable[..., Expected]] = {
    "+": add, "-": sub, "*": mul, "/": div, "unary": unary, "gelu_exact": gelu_exact,
    "gelu_tanh": gelu_tanh, "soft_cap": soft_cap, "hadamard": hadamard,
    "glu": glu, "clamped_swiglu": clamped_swiglu, "add_id": add_id, "scale": scale, "clamp": clamp, "xielu": xielu,
    **{name: _named(name) for name in ("sqr", "sqrt", "log", "sin", "cos")},
    "rms_norm": rms_norm, "layer_norm": layer_norm, "l2_norm": l2_norm, "sum_rows": sum_rows, "mean": mean,
    "argsort": argsort, "top_k": top_k, "best_k": top_k,
    "view": view, "reshape": reshape, "permute": permute, "transpose": transpose,
    "cont": cont, "cast": cast, "copy": copy, "concat": concat, "repeat": repeat, "get_rows": get_rows,
    "set_rows": set_rows, "mul_mat": mul_mat, "mul_mat_small_batch": mul_mat, "mul_mat_id": mul_mat_id,
    "mul_mat_id_small_batch": mul_mat_id, "weighted_sum": weighted_sum, "rope": rope,
    "softmax": softmax, "flash_attention": flash_attention, "paged_attention": paged_attention,
    "causal_conv": causal_conv, "gated_delta_net": gated_delta_net, "ssm_scan": ssm_scan,
}  # fmt: skip
