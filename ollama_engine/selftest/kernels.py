"""Kernels of products, attention and recurrent states: every instruction set beside plain C, plain C beside numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from ollama_engine.config import CacheType
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage, can_repack
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.ops.amx import amx_allowed, amx_attention, amx_product
from ollama_engine.ml.ops.paged import paged_attention_instructions
from ollama_engine.ml.ops.recurrent import recurrent_instructions, ssm_state_size
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED, SMALL_BATCH_VARIANTS, small_batch_instructions
from ollama_engine.ml.weights.quantize import dequantize_rows, quantize_rows
from ollama_engine.selftest.check import Check, Floats, close, same_bits

__all__ = ["kernel_checks"]

WIDTH, LENGTH, ROWS = 53, 512, 33
"""Of the products: outputs, weights of each, rows; widths and rows that fill no tile."""
ROUNDED = 0.05
"""Tolerance where activations are rounded to 8 bits."""
EXACT = 1e-4
KEY_HEADS, GROUP, DIM, CELLS = 2, 3, 64, 70
CHANNELS, SLOTS = 48, 3


def kernel_checks() -> Iterator[Check]:
    """Checks of the kernels that this CPU runs."""
    for dtype in (*SMALL_BATCH_QUANTIZED, "f16", "bf16"):
        yield Check(f"products {dtype}", partial(_products, dtype))
        if dtype in SMALL_BATCH_QUANTIZED:
            yield Check(f"experts {dtype}", partial(_experts, dtype))
    yield Check("products f16, whole numbers", partial(_products, "f16", whole=True))  # of image towers
    for dtype in (*SMALL_BATCH_QUANTIZED, "f16", "bf16", "f32"):
        yield Check(f"ggml {dtype}", partial(_ggml, dtype))
    for dtype in get_args(CacheType):
        yield Check(f"attention {dtype}", partial(_attention, dtype))
    for name, build, size in (
        ("convolution", _convolution, CHANNELS * 3),
        ("delta net", _delta_net, 48 * 24 * 2),
        ("state space", _state_space, ssm_state_size(20, 32, 2)),
    ):
        yield Check(name, partial(_recurrent, build, size))
    if amx_allowed():
        yield Check("AMX", _amx)


def noise(*shape: int, seed: int = 0) -> Floats:
    """Normally distributed numbers, the same in each run."""
    return np.random.default_rng([*shape, seed]).standard_normal(shape).astype(np.float32)


def computed(ctx: Context, out: Tensor) -> Floats:
    ctx.forward(out)
    ctx.compute()
    return out.numpy().reshape(out.shape[::-1]).copy()


def one_thread() -> Backend:
    return Backend(BackendParams(threads=1, gpu_layers=0), max_nodes=64)


def two_threads() -> Backend:
    return Backend(BackendParams(threads=2, gpu_layers=0), max_nodes=64)


def weights(storage: Storage, dtype: str, shape: tuple[int, ...], values: Floats, *, repacked: bool = False) -> Tensor:
    """Weights of a type in a storage of their own."""
    tensor = storage.add("w", dtype, shape)
    if repacked:
        storage.allocate_repacked()
    else:
        storage.allocate(0)
    tensor.set_bytes(encoded(dtype, values, tensor.nbytes))
    return tensor


def encoded(dtype: str, values: Floats, nbytes: int) -> NDArray[np.uint8]:
    raw = np.empty(nbytes, np.uint8)
    quantize_rows(dtype, np.ascontiguousarray(values.reshape(-1, values.shape[-1])), raw)
    return raw


def decoded(dtype: str, values: Floats) -> Floats:
    """The values as a type keeps them."""
    if dtype == "f32":
        return values
    with one_thread() as backend, Storage(backend, 1) as storage:
        size = weights(storage, dtype, values.shape[::-1], values).nbytes
    out = np.empty(values.size, np.float32)
    dequantize_rows(dtype, encoded(dtype, values, size), out)
    return out.reshape(values.shape)


# -- products ----------------------------------------------------------------------------------------------------------


def _products(dtype: str, *, whole: bool = False) -> str:
    """All instruction sets and ways of reading, one row and several, one thread and two."""
    length = LENGTH + 48 if whole else LENGTH  # a last step that is not full
    values, x = noise(WIDTH, length), noise(ROWS, length, seed=1)
    tolerance = ROUNDED if dtype in SMALL_BATCH_QUANTIZED else 1e-2 if dtype == "bf16" else 1e-3 if whole else EXACT

    def results() -> Iterator[tuple[str, Floats]]:
        for open_backend in (one_thread, two_threads):
            with open_backend() as backend, Storage(backend, 1) as storage:
                weight = weights(storage, dtype, (length, WIDTH), values)
                for name in small_batch_instructions(dtype):
                    for variant in SMALL_BATCH_VARIANTS:
                        for rows in (ROWS, 1, 4, 7):
                            with Context(backend) as ctx:
                                given = ctx.from_floats(x[:rows])
                                out = ops.mul_mat_small_batch(weight, given, name, variant, whole)
                                yield name, computed(ctx, out).reshape(rows, WIDTH)

    found = list(results())
    close("plain C", found[0][1], x.astype(np.float64) @ decoded(dtype, values).astype(np.float64).T, tolerance)
    return same_bits(found)


def _experts(dtype: str) -> str:
    """Products with two of five experts for each row."""
    values, x = noise(5, WIDTH, LENGTH), noise(6, 1, LENGTH, seed=1)
    chosen = np.array([[row % 5, (row + 2) % 5] for row in range(6)], np.int32)

    def results() -> Iterator[tuple[str, Floats]]:
        with two_threads() as backend, Storage(backend, 1) as storage:
            weight = weights(storage, dtype, (LENGTH, WIDTH, 5), values)
            for name in small_batch_instructions(dtype):
                with Context(backend) as ctx:
                    ids = ctx.from_ints(chosen)
                    yield name, computed(ctx, ops.mul_mat_id_small_batch(weight, ctx.from_floats(x), ids, name))

    exact = np.einsum("rwl,rul->ruw", decoded(dtype, values)[chosen].astype(np.float64).reshape(12, WIDTH, LENGTH),
                      x.repeat(2, axis=0).astype(np.float64))  # fmt: skip
    found = list(results())
    close("plain C", found[0][1].reshape(12, 1, WIDTH), exact, ROUNDED)
    return same_bits(found)


def _ggml(dtype: str) -> str:
    """ggml's product in the library that was chosen for this CPU, of weights as they are and repacked.

    With an even and an odd number of blocks in a row: some loops take two at a time.
    """
    checked = set[str]()
    for length in (LENGTH, LENGTH + block_of(dtype)[0]):
        values, x = noise(48, length), noise(17, length, seed=1)
        exact = x.astype(np.float64) @ decoded(dtype, values).astype(np.float64).T
        with two_threads() as backend:
            forms = ["as in the file"]
            if can_repack(backend, dtype, (length, 48)):
                forms.append("repacked")
            for form in forms:
                with Storage(backend, 1) as storage:
                    weight = weights(storage, dtype, (length, 48), values, repacked=form == "repacked")
                    for rows in (1, 4, 17):
                        with Context(backend) as ctx:
                            result = computed(ctx, ops.mul_mat(weight, ctx.from_floats(x[:rows])))
                        close(f"{form}, {rows} rows of {length}:", result, exact[:rows], ROUNDED)
        checked.update(forms)
    return f"{' and '.join(sorted(checked))}: as numpy"


# -- attention ---------------------------------------------------------------------------------------------------------


def _attention(dtype: str) -> str:
    """Rows that see different cells, and many rows that see the same ones."""
    query, keys, values = (
        noise(16, KEY_HEADS * GROUP, DIM),
        noise(CELLS, KEY_HEADS * DIM),
        noise(CELLS, KEY_HEADS * DIM, seed=1),
    )
    lists = [list(range(row % 7, CELLS - row)) for row in range(8)] + [list(range(CELLS))] * 8

    def results() -> Iterator[tuple[str, Floats]]:
        with two_threads() as backend, Storage(backend, 2) as storage:
            stored = [storage.add(name, dtype, (KEY_HEADS * DIM, CELLS)) for name in ("k", "v")]
            storage.allocate(0)
            for tensor, array in zip(stored, (keys, values), strict=True):
                tensor.set_bytes(encoded(dtype, array, tensor.nbytes))
            for name in paged_attention_instructions(dtype):
                with Context(backend) as ctx:
                    k, v = (_heads(ctx, tensor) for tensor in stored)
                    ends = np.cumsum([len(cells) for cells in lists])
                    bounds = np.stack([ends - [len(cells) for cells in lists], ends], axis=1).astype(np.int32)
                    cells = ctx.from_ints([cell for cells in lists for cell in cells])
                    given = ops.permute(ctx.from_floats(query), 0, 2, 1, 3)
                    out = ops.paged_attention(given, k, v, ctx.from_ints(bounds), cells, DIM**-0.5, instructions=name)
                    yield name, computed(ctx, out)

    found = list(results())
    tolerance = EXACT if dtype == "f32" else 1e-3  # other keys are rounded to 16 bits
    close("plain C", found[0][1].reshape(query.shape), _softmax_twin(dtype, query, keys, values, lists), tolerance)
    return same_bits(found)


def _heads(ctx: Context, stored: Tensor) -> Tensor:
    cell = stored.stride(1)
    return ops.view(stored, (DIM, CELLS, KEY_HEADS), (cell, cell // KEY_HEADS), ctx=ctx)


def _softmax_twin(
    dtype: str, query: Floats, keys: Floats, values: Floats, lists: list[list[int]]
) -> NDArray[np.float64]:
    k, v = (
        decoded(dtype, array).astype(np.float64).reshape(CELLS, KEY_HEADS, DIM).repeat(GROUP, axis=1)
        for array in (keys, values)
    )
    out = np.zeros(query.shape)
    for row, cells in enumerate(lists):
        scores = np.einsum("hd,chd->hc", query[row].astype(np.float64), k[cells]) * DIM**-0.5
        seen = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[row] = np.einsum("hc,chd->hd", seen / seen.sum(axis=1, keepdims=True), v[cells])
    return out


# -- recurrent states, AMX ---------------------------------------------------------------------------------------------

Table = tuple[Tensor, Tensor, Tensor]


def _recurrent(build: Callable[[Context, Table, Tensor, str], Tensor], size: int) -> str:
    """Two sequences in one batch: one that begins and one that goes on, whose state has `size` numbers."""
    arrays = [np.array(rows, np.int32) for rows in ([3, 0, 5, 1, 2, 4], [[0, 3], [3, 6]], [[SLOTS, 0], [1, 2]])]

    def results() -> Iterator[tuple[str, Floats]]:
        with two_threads() as backend:
            for name in recurrent_instructions():
                with Storage(backend, 1) as storage, Context(backend) as ctx:
                    states = storage.add("states", "f32", (size, SLOTS))
                    storage.allocate(0)
                    states.set(noise(SLOTS, size))
                    table = [ctx.input("i32", array.shape[::-1]) for array in arrays]
                    out = build(ctx, (table[0], table[1], table[2]), states, name)
                    ctx.forward(out)
                    ctx.alloc()
                    for tensor, array in zip(table, arrays, strict=True):
                        tensor.set(array)
                    ctx.compute()
                    yield name, np.concatenate([out.numpy().ravel(), states.numpy().ravel()])

    return same_bits(list(results()))


def _convolution(ctx: Context, table: Table, states: Tensor, name: str) -> Tensor:
    x, taps = ctx.from_floats(noise(6, CHANNELS)), ctx.from_floats(noise(CHANNELS, 4))
    return ops.causal_conv(x, taps, *table, states, instructions=name)


def _delta_net(ctx: Context, table: Table, states: Tensor, name: str) -> Tensor:
    q, k = (ctx.from_floats(noise(6, 2, 48, seed=seed) / np.float32(7)) for seed in (1, 2))
    v, g = ctx.from_floats(noise(6, 2, 24)), ctx.from_floats(-np.abs(noise(6, 2)))
    beta = ctx.from_floats(np.float32(1) / (1 + np.exp(noise(6, 2, seed=1))))
    return ops.gated_delta_net(q, k, v, g, beta, *table, states, instructions=name)


def _state_space(ctx: Context, table: Table, states: Tensor, name: str) -> Tensor:
    x, dt = ctx.from_floats(noise(6, 2, 20)), ctx.from_floats(np.abs(noise(6, 2)))
    b, c = (ctx.from_floats(noise(6, 1, 32, seed=seed)) for seed in (1, 2))
    a = ctx.from_floats(-np.abs(noise(1, 2)[0]))
    return ops.ssm_scan(x, dt, a, b, c, *table, states, instructions=name)


def _amx() -> str:
    """The encoders' products and attention, which have no plain twin: beside numpy."""
    weight, x = noise(150, 400) / np.float32(20), noise(129, 400, seed=1)
    heads = [noise(40, 2, 64, seed=seed) for seed in range(3)]
    with two_threads() as backend:
        with Context(backend) as ctx:
            result = computed(ctx, amx_product(ctx.from_floats(weight), ctx.from_floats(x)))
        close("product", result, x.astype(np.float64) @ weight.astype(np.float64).T, EXACT)
        with Context(backend) as ctx:
            first, second, third = (ops.permute(ctx.from_floats(array), 0, 2, 1, 3) for array in heads)
            result = computed(ctx, amx_attention(first, second, third, 1 / 8))
    q, k, v = (array.astype(np.float64) for array in heads)
    scores = np.einsum("qhd,khd->hqk", q, k) / 8
    seen = np.exp(scores - scores.max(axis=-1, keepdims=True))
    close("attention", result, np.einsum("hqk,khd->qhd", seen / seen.sum(axis=-1, keepdims=True), v), EXACT)
    return "product and attention: as numpy"
