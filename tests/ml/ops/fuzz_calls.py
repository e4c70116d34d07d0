"""Random calls of every operation: sound ones, and what becomes of them when an argument is exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import numpy as np

from ollama_engine.config import CacheType
from ollama_engine.ml.ops.recurrent import ssm_state_size
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED
from tests.ml.ops.fuzz_values import INTERNAL, UNIT, Call, Env, Value, unit_of

QUANTIZABLE = get_args(CacheType)


# -- sound calls -------------------------------------------------------------------------------------------------------


def _divisor(env: Env, n: int) -> int:
    return env.rng.choice([d for d in range(1, n + 1) if n % d == 0])


def arithmetic(env: Env) -> Call:
    shape = env.dims()
    a = env.operand("f32", shape, odd=0.2)
    small = tuple(_divisor(env, n) for n in shape) if env.rng.random() < 0.5 else shape
    b = env.operand("f32", small, graph=a.where == "stored", odd=0.1)
    return Call(env.rng.choice("+-*/"), [a, b])


def one_row_operand(name: str, *options: Callable[[Env], Any]) -> Callable[[Env], Call]:
    def make(env: Env) -> Call:
        return Call(name, [env.operand("f32", env.dims(), graph=True, odd=0.2), *(option(env) for option in options)])

    return make


def _eps(env: Env) -> float:
    return env.rng.choice((1e-6, 1e-5, 1e-3, 0.1, 1))


def _activation(env: Env) -> str:
    return env.rng.choice(
        ("abs", "neg", "tanh", "relu", "sigmoid", "gelu", "gelu_erf", "gelu_quick", "silu", "exp", "softplus", "floor")
    )


def hadamard(env: Env) -> Call:
    block = env.rng.choice((16, 32, 64))
    shape = (block * env.rng.choice((1, 2, 3)), *env.dims()[1:])
    return Call("hadamard", [env.operand("f32", shape, graph=True, odd=0.2), block])


def glu(env: Env) -> Call:
    shape = env.dims()
    gate, up = env.operand("f32", shape, graph=True, odd=0.1), env.operand("f32", shape, odd=0.1)
    return Call("glu", [gate, up, env.rng.choice(("silu", "gelu", "relu", "gelu_erf", "gelu_quick"))])


def clamped_swiglu(env: Env) -> Call:
    shape = env.dims()
    gate, up = env.operand("f32", shape, graph=True, odd=0.1), env.operand("f32", shape, odd=0.1)
    return Call("clamped_swiglu", [gate, up, env.rng.choice((1.702, 1.0, -0.5)), env.rng.choice((0.5, 7.0))])


def clamp(env: Env) -> Call:
    low, high = sorted(env.rng.choice((-math.inf, -2.0, -0.5, 0, 1, 3.5, math.inf)) for _ in range(2))
    return Call("clamp", [env.operand("f32", env.dims(), graph=True), low, high])


def xielu(env: Env) -> Call:
    numbers = [env.rng.choice((-2.0, 0.0, 0.4)), env.rng.choice((-1.0, 0.7)), env.rng.choice((0.5, 0, -1))]
    return Call("xielu", [env.operand("f32", env.dims(), graph=True), *numbers, env.rng.choice((-1e-6, 0.0, -0.3))])


def sort(env: Env) -> Call:
    a = env.operand("f32", (env.rng.choice((1, 2, 7, 16, 17, 60, 200)), *env.dims(2, 4)), graph=True, odd=0.1)
    name = env.rng.choice(("argsort", "top_k", "best_k"))
    if name == "argsort":
        return Call(name, [a, env.rng.random() < 0.5])
    return Call(name, [a, env.rng.randint(1, a.shape[0])])


def _any_type(env: Env) -> str:
    if env.rng.random() < 0.6:
        return env.rng.choice(("f32", "f32", "f16", "i32", "bf16"))
    return env.rng.choice(list(env.bank.blocks))


def _shape_for(env: Env, dtype: str, largest: int = 6) -> tuple[int, ...]:
    rank = env.rng.randint(1, 4)
    block = unit_of(dtype)[1]
    return (block * env.rng.randint(1, 3 if block > 1 else largest), *env.dims(3, largest)[: rank - 1])


def view(env: Env) -> Call:
    dtype = _any_type(env)
    t = env.make(dtype, _shape_for(env, dtype))
    unit, block = unit_of(dtype)
    blocks = t.array.size // block
    start = env.rng.randint(0, blocks - 1)
    row = env.rng.randint(1, min(blocks - start, 8))
    rest = (blocks - start) // row
    rows = env.rng.randint(1, min(rest, 8))
    kwargs: dict[str, Any] = {"ctx": env.ctx} if t.where == "stored" or env.rng.random() < 0.3 else {}
    if env.rng.random() < 0.4:
        return Call("view", [t, (row * block, rows), None, start * unit], kwargs)
    step = env.rng.randint(row, max(row, (blocks - start - row) // max(1, rows - 1))) if rows > 1 else row
    return Call("view", [t, (row * block, rows), (step * unit,), start * unit], kwargs)


def reshape(env: Env) -> Call:
    dtype = _any_type(env)
    t = env.make(dtype, _shape_for(env, dtype), graph=True)
    block = unit_of(dtype)[1]
    left, shape = t.array.size // block, []
    for _ in range(env.rng.randint(1, 3)):
        shape.append(_divisor(env, left))
        left //= shape[-1]
    shape = [shape[0] * block, *shape[1:], left] if shape else [left * block]
    return Call("reshape", [t, *shape])


def permute(env: Env) -> Call:
    dtype = _any_type(env)
    t = env.make(dtype, _shape_for(env, dtype), graph=True)
    if env.rng.random() < 0.3:
        return Call("transpose", [t if unit_of(dtype)[1] == 1 else env.make("f32", env.dims(), graph=True)])
    axes = env.rng.sample(range(4), 4) if unit_of(dtype)[1] == 1 else [0, *env.rng.sample(range(1, 4), 3)]
    return Call("permute", [t, *axes])


def cont(env: Env) -> Call:
    t = env.operand(env.rng.choice(("f32", "f16", "i32")), env.dims(), graph=True, odd=0.7)
    return Call("cont", [t])


def cast(env: Env) -> Call:
    target = env.rng.choice(QUANTIZABLE)
    if unit_of(target)[1] > 1:
        return Call("cast", [env.operand("f32", (32 * env.rng.randint(1, 3), *env.dims(2)), graph=True, odd=0), target])
    source = "i32" if target == "f32" and env.rng.random() < 0.3 else env.rng.choice(("f32", "f16"))
    return Call("cast", [env.operand(source, env.dims(), graph=True, odd=0.4), target])


def copy(env: Env) -> Call:
    dtype = env.rng.choice(QUANTIZABLE)
    if unit_of(dtype)[1] > 1:
        shape: tuple[int, ...] = (32 * env.rng.randint(1, 3), *env.dims(2))
        return Call("copy", [env.operand("f32", shape, graph=True, odd=0), env.make(dtype, shape)])
    shape = env.dims(3)
    source = env.operand(env.rng.choice(("f32", "f16")), shape, graph=True, odd=0.2)
    return Call("copy", [source, env.make(dtype, env.rng.choice((shape, (math.prod(shape),))))])


def concat(env: Env) -> Call:
    dtype, axis, shape = env.rng.choice(("f32", "f16", "i32")), env.rng.randrange(4), list(env.dims(4, 5))
    a = env.operand(dtype, tuple(shape), graph=True, odd=0.1)
    shape[axis] = env.rng.randint(1, 5)
    return Call("concat", [a, env.operand(dtype, tuple(shape), odd=0.1), axis])


def repeat(env: Env) -> Call:
    t = env.operand("f32", env.dims(None, 5), graph=True, odd=0.1)
    return Call("repeat", [t, *(n * env.rng.randint(1, 3) for n in t.shape)])


def get_rows(env: Env) -> Call:
    dtype = _any_type(env)
    n, rows, n2, n3 = (
        _shape_for(env, dtype)[0],
        env.rng.randint(1, 9),
        *env.rng.choice(((1, 1), (1, 1), (3, 2), (2, 1))),
    )
    table = env.make(dtype, (n, rows, n2, n3))
    index = env.make("i32", (env.rng.randint(1, 7), n2, n3), limit=rows, graph=True)
    return Call("get_rows", [table, index])


def set_rows(env: Env) -> Call:
    dtype = env.rng.choice(QUANTIZABLE)
    n = env.rng.randint(1, 3) * 32 if unit_of(dtype)[1] > 1 else env.rng.randint(1, 9)
    rows = env.rng.randint(1, 9)
    k, (n2, n3) = env.rng.randint(1, rows), env.rng.choice(((1, 1), (1, 1), (3, 2)))
    table = env.make(dtype, (n, rows, n2, n3))
    chosen = np.array(env.rng.sample(range(rows), k), dtype=env.rng.choice((np.int32, np.int64)))
    index = env.make("i64" if chosen.dtype == np.int64 else "i32", (k,), data=chosen)
    return Call("set_rows", [table, env.operand("f32", (n, k, n2, n3), graph=True, odd=0), index])


def _weight_type(env: Env) -> str:
    return env.rng.choice(("f32", "f16", "bf16", *env.bank.blocks))


def mul_mat(env: Env) -> Call:
    dtype, block = (kind := _weight_type(env)), unit_of(kind)[1]
    big = env.rng.random() < 0.06
    n = block * env.rng.randint(1, 2 if block > 64 else 4) if block > 1 else env.rng.randint(1, 70)
    m, k = (
        (env.rng.randint(16, 70), env.rng.randint(8, 70)) if big else (env.rng.randint(1, 20), env.rng.randint(1, 12))
    )
    n2, n3 = env.rng.choice(((1, 1), (1, 1), (2, 1), (2, 3)))
    outer = (n2 * env.rng.randint(1, 2), n3 * env.rng.randint(1, 2))
    a = env.operand(dtype, (n, m, n2, n3), odd=0.1)
    return Call("mul_mat", [a, env.operand("f32", (n, k, *outer), graph=a.where == "stored", odd=0.1)],
                {"precise": True} if env.rng.random() < 0.2 else {})  # fmt: skip


def mul_mat_small_batch(env: Env) -> Call:
    dtype = env.rng.choice((*SMALL_BATCH_QUANTIZED, "f16", "bf16"))
    block = unit_of(dtype)[1]
    n = block * env.rng.randint(1, 3) if block > 1 else 16 * env.rng.randint(1, 7)
    m, k = env.rng.randint(1, 40), env.rng.randint(1, 19)
    a = env.operand(dtype, (n, m), odd=0.1)
    return Call("mul_mat_small_batch", [a, env.operand("f32", (n, k), graph=a.where == "stored", odd=0.1)])


def mul_mat_id(env: Env) -> Call:
    dtype = _weight_type(env)
    block = unit_of(dtype)[1]
    n = block * env.rng.randint(1, 2) if block > 1 else env.rng.randint(1, 40)
    experts, rows = env.rng.randint(1, 6), env.rng.choice((1, 2, 5, 20))
    used = env.rng.randint(1, experts)
    ids = env.make("i32", (used, rows), limit=experts)
    b = env.make("f32", (n, env.rng.choice((1, used)), rows), graph=True)
    return Call("mul_mat_id", [env.make(dtype, (n, env.rng.randint(1, 18), experts)), b, ids])


def add_id(env: Env) -> Call:
    n, experts, rows = env.rng.randint(1, 40), env.rng.randint(1, 6), env.rng.choice((1, 2, 5, 20))
    used = env.rng.randint(1, experts)
    a = env.operand("f32", (n, used, rows), graph=True, odd=0.1)
    return Call("add_id", [a, env.make("f32", (n, experts)), env.make("i32", (used, rows), limit=experts)])


def mul_mat_id_small_batch(env: Env) -> Call:
    """Also of types that it refuses."""
    dtype = env.rng.choice(SMALL_BATCH_QUANTIZED) if env.rng.random() < 0.8 else _weight_type(env)
    block = unit_of(dtype)[1]
    n = block * env.rng.randint(1, 5) if block > 1 else env.rng.randint(1, 70)
    m, experts = env.rng.randint(1, 40), env.rng.randint(1, 6)
    used, rows = env.rng.randint(1, 8), env.rng.choice((1, 2, 5, 20))
    ids = env.make("i32", (used, rows), limit=experts)
    b = env.make("f32", (n, env.rng.choice((1, used)), rows), graph=True)
    return Call("mul_mat_id_small_batch", [env.make(dtype, (n, m, experts)), b, ids])


def weighted_sum(env: Env) -> Call:
    rows, n = env.rng.randint(1, 9), env.rng.choice((1, 2, 7))
    x = env.operand("f32", (env.rng.choice((1, 5, 255, 257, 700)), rows, n), graph=True, odd=0.1)
    return Call("weighted_sum", [x, env.make("f32", (1, rows, n))])


def rope(env: Env) -> Call:
    d, heads, n = 2 * env.rng.randint(1, 20), env.rng.randint(1, 5), env.rng.randint(1, 6)
    x = env.operand(
        env.rng.choice(("f32", "f32", "f16")), (d, heads, n, env.rng.choice((1, 1, 2))), graph=True, odd=0.1
    )
    n_dims = d if env.rng.random() < 0.6 else 2 * env.rng.randint(1, d // 2)
    kwargs: dict[str, Any] = {"mode": env.rng.choice(("norm", "neox"))}
    if n_dims < d and env.rng.random() < 0.5:
        kwargs["offset"] = 2 * env.rng.randint(0, (d - n_dims) // 2)
    if env.rng.random() < 0.3:
        factors = np.exp(env.numbers.normal(0, 1, env.rng.choice((n_dims // 2, d // 2, d)))).astype(np.float32)
        kwargs["factors"] = env.make("f32", factors.shape, data=factors)
    if env.rng.random() < 0.4:
        kwargs |= {"freq_base": env.rng.choice((100.0, 1e4, 5e5)), "freq_scale": env.rng.choice((0.25, 1.0, 2.0))}
    if env.rng.random() < 0.3:
        kwargs |= {"n_ctx_orig": env.rng.choice((64, 4096)), "ext_factor": env.rng.choice((1.0, 0.5)),
                   "attn_factor": env.rng.choice((1.0, 0.8)), "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
    return Call("rope", [x, env.make("i32", (n,), limit=env.rng.choice((4, 3000))), n_dims], kwargs)


def _mask(env: Env, dtype: str, keys: int, queries: int, heads: int) -> Value:
    data = np.where(env.numbers.random((heads, queries, keys)) < 0.3, -np.inf, 0).astype(np.float32)
    data[..., 0] = 0
    data = data.astype(np.float16 if dtype == "f16" else np.float32)
    return env.make(dtype, (keys, queries, heads), data=data.reshape(-1))


def softmax(env: Env) -> Call:
    keys, queries, heads = env.rng.randint(1, 40), env.rng.randint(1, 6), env.rng.randint(1, 5)
    kwargs: dict[str, Any] = {"scale": env.rng.choice((1.0, 0.3, 2))}
    if env.rng.random() < 0.6:
        kwargs["mask"] = _mask(env, env.rng.choice(("f32", "f16")), keys, queries + env.rng.choice((0, 0, 3)), 1)
    if env.rng.random() < 0.3:
        kwargs["sinks"] = env.make("f32", (heads,))
    shape = (keys, queries, heads, env.rng.choice((1, 1, 2)))
    return Call("softmax", [env.operand("f32", shape, graph=True, odd=0.05)], kwargs)


def flash_attention(env: Env) -> Call:
    kind = env.rng.choice(QUANTIZABLE)
    other = kind if env.rng.random() < 0.8 else env.rng.choice(QUANTIZABLE)
    d, dv = (32 * env.rng.randint(1, 2) if unit_of(t)[1] > 1 else env.rng.randint(1, 40) for t in (kind, other))
    kv_heads = env.rng.randint(1, 3)
    heads, batch = kv_heads * env.rng.randint(1, 3), env.rng.choice((1, 1, 1, 2))
    queries, keys = env.rng.choice(((1, 5), (3, 33), (1, 9), (4, 70), (66, 80), (1, 600)))
    if keys > 100:
        heads, kv_heads, batch = 2, 1, 1
    q = env.operand("f32", (d, queries, heads, batch), graph=True, odd=0.1)
    k, v = env.make(kind, (d, keys, kv_heads, batch)), env.make(other, (dv, keys, kv_heads, batch))
    kwargs: dict[str, Any] = {"scale": 1 / math.sqrt(d)}
    if env.rng.random() < 0.5:
        kwargs["mask"] = _mask(env, "f16", keys, queries, 1)
    if env.rng.random() < 0.2:
        kwargs["softcap"] = env.rng.choice((5.0, 30.0))
    if env.rng.random() < 0.2:
        kwargs["sinks"] = env.make("f32", (heads,))
    return Call("flash_attention", [q, k, v], kwargs)


def paged_attention(env: Env) -> Call:
    kind = env.rng.choice(QUANTIZABLE)
    d, dv = (32 * env.rng.randint(1, 2) if unit_of(kind)[1] > 1 else env.rng.randint(1, 40) for _ in range(2))
    kv_heads, rows, keys = env.rng.randint(1, 3), env.rng.randint(1, 5), env.rng.choice((1, 9, 70, 600))
    heads, room = kv_heads * env.rng.randint(1, 9), env.rng.randint(1, 700)
    parts = np.sort(env.numbers.integers(0, room + 1, (rows, 2)), axis=1).astype(np.int32)
    kwargs: dict[str, Any] = {"scale": 1 / math.sqrt(d)}
    if env.rng.random() < 0.2:
        kwargs["softcap"] = env.rng.choice((5.0, 30.0))
    if env.rng.random() < 0.2:
        kwargs["sinks"] = env.make("f32", (heads,))
    return Call("paged_attention", [
        env.operand("f32", (d, rows, heads), graph=True, odd=0.1), env.make(kind, (d, keys, kv_heads)),
        env.make(kind, (dv, keys, kv_heads)), env.make("i32", (2, rows), data=parts.reshape(-1)),
        env.make("i32", (room,), limit=keys),
    ], kwargs)  # fmt: skip


def _segments(env: Env, n: int, n_slots: int) -> list[Value]:
    """Rows in any order, cut into segments that read any slot and write one each."""
    cuts = sorted(env.rng.sample(range(n + 1), env.rng.randint(0, min(3, n + 1))))
    bounds = [(begin, end) for begin, end in pairwise((0, *cuts, n))] + [(0, 0)] * env.rng.randint(0, 2)
    order = env.numbers.permutation(n).astype(np.int32)
    writes = env.rng.sample(range(n_slots), min(len(bounds), n_slots)) + [n_slots] * len(bounds)
    slots = [(env.rng.choice([s for s in range(n_slots + 1) if s not in writes] or [n_slots]), w) for w in writes]
    m = len(bounds)
    return [
        env.make("i32", (n,), data=order), env.make("i32", (2, m), data=np.array(bounds, np.int32).reshape(-1)),
        env.make("i32", (2, m), data=np.array(slots[:m], np.int32).reshape(-1)),
    ]  # fmt: skip


def causal_conv(env: Env) -> Call:
    channels, n, taps = env.rng.choice((1, 5, 63, 64, 130)), env.rng.randint(1, 9), env.rng.randint(2, 5)
    n_slots = env.rng.choice((0, 0, 1, 5))
    form = env.rng.choice(("plain", "silu", "gated"))
    width = 3 * channels if form == "gated" else channels
    operands = [env.operand("f32", (width, n), graph=True, odd=0.1), env.make("f32", (taps, channels))]
    states = [env.make("f32", (channels * (taps - 1), n_slots))] if n_slots else []
    kwargs = {} if form == "plain" else {"bias": env.make("f32", (channels,)), form: True}
    return Call("causal_conv", [*operands, *_segments(env, n, n_slots), *states], kwargs)


def _small(env: Env, *shape: int) -> Value:
    """Numbers that are no logarithms or strengths of states which explode."""
    return env.make("f32", shape, data=env.numbers.uniform(-1, 0, math.prod(shape)).astype(np.float32), graph=True)


def gated_delta_net(env: Env) -> Call:
    key_heads, n, dv = env.rng.randint(1, 3), env.rng.randint(1, 5), env.rng.choice((1, 15, 16, 33))
    dk, heads, n_slots = env.rng.randint(1, 48), key_heads * env.rng.randint(1, 3), env.rng.choice((0, 1, 5))
    keys = [_small(env, dk, key_heads, n) for _ in range(2)]
    by_channel = dk > 1 and env.rng.choice((True, False))
    decays = _small(env, dk, heads, n) if by_channel else _small(env, heads, n)
    rest = [env.make("f32", (dv, heads, n)), decays, _small(env, heads, n)]
    states = [env.make("f32", (dk * dv * heads, n_slots))] if n_slots else []
    kwargs = {"grouped": env.rng.choice((True, False))}
    return Call("gated_delta_net", [*keys, *rest, *_segments(env, n, n_slots), *states], kwargs)


def ssm_scan(env: Env) -> Call:
    groups, n, dim = env.rng.randint(1, 3), env.rng.randint(1, 5), env.rng.choice((1, 15, 16, 33))
    d_state, heads, n_slots = env.rng.randint(1, 48), groups * env.rng.randint(1, 3), env.rng.choice((0, 1, 5))
    times = env.make("f32", (heads, n), data=env.numbers.random(heads * n).astype(np.float32))
    sides = [env.make("f32", (d_state, groups, n)) for _ in range(2)]
    states = [env.make("f32", (ssm_state_size(dim, d_state, heads), n_slots))] if n_slots else []
    x = env.make("f32", (dim, heads, n), graph=True)
    kwargs = {"d": env.make("f32", (heads,))} if env.rng.choice((True, False)) else {}
    return Call("ssm_scan", [x, times, _small(env, heads), *sides, *_segments(env, n, n_slots), *states], kwargs)


SOUND: tuple[Callable[[Env], Call], ...] = (
    arithmetic, arithmetic, arithmetic, glu, clamped_swiglu, add_id, clamp, sort, view, reshape, permute, cont, cast,
    copy, concat, repeat,
    get_rows, set_rows, mul_mat, mul_mat, mul_mat_small_batch, mul_mat_id, mul_mat_id_small_batch, weighted_sum, rope,
    softmax, flash_attention, paged_attention, causal_conv, gated_delta_net,
    ssm_scan, xielu,
    one_row_operand("unary", _activation), one_row_operand("unary", _activation),
    hadamard, one_row_operand("soft_cap", lambda e: e.rng.choice((0.5, 30.0))),
    one_row_operand("scale", lambda e: e.rng.choice((0, 1, -0.5, 3)), lambda e: e.rng.choice((0.0, 0.7))),
    *(one_row_operand(name) for name in ("gelu_exact", "gelu_tanh")),
    *(one_row_operand(name) for name in ("sqr", "sqrt", "log", "sin", "cos", "sum_rows", "mean")),
    *(one_row_operand(name, _eps) for name in ("rms_norm", "rms_norm", "layer_norm", "l2_norm")),
)  # fmt: skip

# -- unsound ones ------------------------------------------------------------------------------------------------------


class Awkward:
    """Refuses to be a number, a sequence, an array or a buffer."""

    def _refuse(self, *_: object) -> Any:
        raise ValueError("awkward")

    __float__ = __int__ = __index__ = __iter__ = __len__ = __array__ = __eq__ = __lt__ = __le__ = __bool__ = _refuse
    __hash__ = None  # type: ignore[assignment]


EVIL: tuple[Any, ...] = (
    None, math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3, 4, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 63, 1 << 80, 1.5,
    1e300, -1e-300, True, "f32", "q4_K", "", "no such", "\udcff", b"f32", (), (0,), (1, 1, 1, 1, 1), (1 << 40, 1 << 40),
    (-1, 2), (2.5,), [3, 4], {}, object(), Awkward(), np.float32(np.nan), np.int64(-1), np.int64(2), np.zeros(3),
    np.zeros((2, 2), dtype=np.int32), lambda: None, int, ("a", "b"), (None,), range(3), slice(2), 3 + 4j, bytearray(4),
)  # fmt: skip


def spoil(env: Env, call: Call) -> Call:
    """The same call with one thing wrong, or at least different."""
    args, kwargs = list(call.args), dict(call.kwargs)
    what = env.rng.random()
    place = env.rng.randrange(len(args))
    if what < 0.3:
        args[place] = env.rng.choice(EVIL)
    elif what < 0.45:
        args[place] = env.rng.choice(env.oddities)
    elif what < 0.7 and env.pool:
        args[place] = env.rng.choice(env.pool)
    elif what < 0.78:
        other = env.rng.randrange(len(args))
        args[place], args[other] = args[other], args[place]
    elif what < 0.82:
        args.pop(place)
    elif what < 0.85:
        args.append(env.rng.choice(EVIL))
    elif kwargs:
        name = env.rng.choice(sorted(kwargs))
        kwargs[name] = env.rng.choice(EVIL if env.rng.random() < 0.6 else env.oddities)
    else:
        kwargs[env.rng.choice(("scale", "eps", "mask", "strides", "nonsense"))] = env.rng.choice(EVIL)
    return Call(call.name, args, kwargs)


def all_types(env: Env) -> list[str]:
    return [*UNIT, *INTERNAL, *env.bank.blocks]
