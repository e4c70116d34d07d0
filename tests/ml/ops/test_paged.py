"""paged_attention: against numpy in float64, against ggml's flash attention, and against itself bit by bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.config import CacheType
from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.ops.paged import paged_attention_chosen, paged_attention_instructions
from ollama_engine.ml.weights.quantize import quantize_rows
from tests.support.instruction_sets import ATTENTION, Case, RecordProperty, every, runnable
from tests.support.suite import slow_except

TYPES = get_args(CacheType)
BLOCKS = tuple(dtype for dtype in TYPES if block_of(dtype)[0] > 1)
"""Types whose numbers share a scale in blocks of 32."""
KERNELS = [(dtype, name) for dtype in TYPES for name in ATTENTION]
Floats = NDArray[np.float32]
Lists = list[list[int]]

TOLERANCE = 2e-5
"""Of values of about 1: a score sums up to 256 products and is off by up to 30 * 2^-24 * some, its exponential by as
much in proportion, and weights add up to 1."""


def tolerance(dtype: str, dim: int) -> float:
    """Keys that are not f32, and their queries, are rounded to 16 bits.

    A score is off by about 1.3e-5 of the product of their lengths, which `numbers` makes 2 * dim, times dim**-0.5.
    """
    return TOLERANCE if dtype == "f32" else 1e-4 * float(np.sqrt(dim))


@dataclass(frozen=True)
class Shape:
    """Sizes of one attention: key heads, query heads for each, dimensions, cells of the cache."""

    kv_heads: int = 2
    group: int = 4
    dim: int = 64
    value_dim: int = 64
    n_cells: int = 40
    cap: float = 0.0
    sinks: bool = False

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


@dataclass(frozen=True)
class Numbers:
    """Queries [rows, heads, dim]; keys and values [cells, kv_heads, dim], as the type rounds them; sinks [heads]."""

    query: Floats
    keys: Floats
    values: Floats
    sinks: Floats


def numbers(shape: Shape, rows: int, seed: int = 0) -> Numbers:
    rng = np.random.default_rng([20_261_121, seed])
    return Numbers(
        rng.normal(0, 2, (rows, shape.heads, shape.dim)).astype(np.float32),
        rng.normal(0, 1, (shape.n_cells, shape.kv_heads, shape.dim)).astype(np.float32),
        rng.normal(0, 1, (shape.n_cells, shape.kv_heads, shape.value_dim)).astype(np.float32),
        rng.normal(0, 2, shape.heads).astype(np.float32),
    )


def raw(dtype: str, values: Floats) -> NDArray[Any]:
    """As the cache stores them, [cells, bytes of one]."""
    rows = np.ascontiguousarray(values.reshape(len(values), -1))
    if dtype == "f32":
        return rows.view(np.uint8)
    if dtype == "f16":
        return rows.astype(np.float16).view(np.uint8)
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = np.empty((len(rows), rows.shape[1] // block * size), np.uint8)
    quantize_rows(dtype, rows, out.reshape(-1))
    return out


def rounded(dtype: str, values: Floats) -> NDArray[np.float64]:
    stored = raw(dtype, values)
    if dtype == "f32":
        out = stored.view(np.float32)
    elif dtype == "f16":
        out = stored.view(np.float16)
    else:
        out = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType[dtype.upper()])
    return out.astype(np.float64).reshape(values.shape)


def twin(shape: Shape, dtype: str, given: Numbers, lists: Lists) -> NDArray[np.float64]:
    """[rows, heads, value_dim] in float64."""
    keys = rounded(dtype, given.keys).repeat(shape.group, axis=1)
    values = rounded(dtype, given.values).repeat(shape.group, axis=1)
    out = np.zeros((len(lists), shape.heads, shape.value_dim))
    for row, cells in enumerate(lists):
        if not cells:
            continue
        scores = np.einsum("hd,chd->hc", given.query[row].astype(np.float64), keys[cells]) * shape.dim**-0.5
        if shape.cap:
            scores = shape.cap * np.tanh(scores / shape.cap)
        sink = given.sinks[:, None].astype(np.float64) if shape.sinks else np.full((shape.heads, 1), -np.inf)
        most = np.maximum(scores.max(axis=1, keepdims=True), sink)
        weights = np.exp(scores - most)
        total = weights.sum(axis=1, keepdims=True) + np.exp(sink - most)
        out[row] = np.einsum("hc,chd->hd", weights / total, values[cells])
    return out


def attend(
    backend: Backend, shape: Shape, dtype: str, given: Numbers, lists: Lists, name: str | None = None,
    *, masked: bool = False, layers: int = 1, parts: Lists | None = None, phases: list[int] | None = None,
) -> Floats:  # fmt: skip
    """The result of paged_attention, or of ggml's flash attention with a mask that shows the same.

    `parts`: where each row begins and ends in all lists joined, unless each has its own.
    """
    with Storage(backend, 2) as storage, Context(backend) as ctx:
        stored = []
        for what, values in (("k", given.keys), ("v", given.values)):
            width = values.shape[1] * values.shape[2]
            stored.append((storage.add(what, dtype, (width, shape.n_cells)), values))
        storage.allocate(0)
        for tensor, values in stored:
            tensor.set_bytes(raw(dtype, values))
        keys, values_ = (_by_head(ctx, tensor, shape.kv_heads, shape.n_cells) for tensor, _ in stored)
        query = ops.permute(ctx.from_floats(given.query), 0, 2, 1, 3)
        options = {"softcap": shape.cap, "sinks": ctx.from_floats(given.sinks) if shape.sinks else None}
        scale = shape.dim**-0.5
        if masked:
            out = [ops.flash_attention(query, keys, values_, _mask(ctx, shape, lists), scale, **options)]
        else:
            bounds, cells = _lists(ctx, lists)
            bounds = ctx.from_ints(parts) if parts else bounds
            options["phases"] = None if phases is None else ctx.from_ints(phases)
            out = [
                ops.paged_attention(query, keys, values_, bounds, cells, scale, **options, instructions=name)
                for _ in range(layers)
            ]
        ctx.forward(*out)
        ctx.compute()
        results = [o.numpy().reshape(len(lists), shape.heads, shape.value_dim) for o in out]
        assert all(result.tobytes() == results[0].tobytes() for result in results)
        return results[0]


def _by_head(ctx: Context, storage: Tensor, heads: int, cells: int) -> Tensor:
    cell = storage.stride(1)
    return ops.view(storage, (storage.dim(0) // heads, cells, heads), (cell, cell // heads), ctx=ctx)


def _lists(ctx: Context, lists: Lists) -> tuple[Tensor, Tensor]:
    ends = np.cumsum([len(cells) for cells in lists])
    parts = np.stack([ends - [len(cells) for cells in lists], ends], axis=1).astype(np.int32)
    return ctx.from_ints(parts), ctx.from_ints([cell for cells in lists for cell in cells] or [0])


def _mask(ctx: Context, shape: Shape, lists: Lists) -> Tensor:
    mask = np.full((len(lists), shape.n_cells), -np.inf, dtype=np.float16)
    for row, cells in enumerate(lists):
        mask[row, cells] = 0
    return ctx.from_floats(mask, dtype="f16")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as backend:
        yield backend


SHAPES = {
    "one head": Shape(1, 1, 32, 32),
    "no groups": Shape(3, 1, 64, 64),
    "groups of 2": Shape(2, 2, 96, 96),
    "groups of 3": Shape(2, 3, 64, 64),
    "groups of 4": Shape(2, 4, 64, 64),
    "groups of 7": Shape(2, 7, 64, 64),
    "groups of 8": Shape(1, 8, 128, 128),
    "one key head for many": Shape(1, 21, 64, 64),
    "values of another size": Shape(2, 4, 192, 128),
    "large heads": Shape(1, 2, 256, 512),
    "softcap": Shape(2, 2, 64, 64, cap=5.0),
    "sinks": Shape(2, 4, 64, 64, sinks=True),
    "softcap and sinks": Shape(1, 3, 32, 32, cap=20.0, sinks=True),
}
QUICK_SHAPES = ("one head", "groups of 3", "values of another size", "softcap and sinks")
ODD = {"72": Shape(2, 3, 72, 72), "20 and 12": Shape(2, 2, 20, 12), "1": Shape(1, 2, 1, 1), "17": Shape(1, 5, 17, 33)}


def kernels(cases: Iterable[Case]) -> list[Any]:
    """Cases that begin with (type, instruction set) as parameters."""
    return runnable(cases, lambda case: paged_attention_instructions(case[0]))


def sets_for(dtype: str) -> list[Any]:
    """Instruction sets as parameters."""
    return runnable(((name,) for name in ATTENTION), lambda _: paged_attention_instructions(dtype), place=0)


def every_set(dtype: str, record_property: RecordProperty) -> Sequence[str]:
    return every(ATTENTION, paged_attention_instructions(dtype), record_property)


def some_lists(n_cells: int, rows: int = 4) -> Lists:
    """Of different lengths, in no order; an empty one among them."""
    rng = np.random.default_rng(n_cells)
    lengths = [n_cells, 1, 0, *rng.integers(1, n_cells + 1, rows - 3).tolist()]
    return [rng.permutation(n_cells)[:length].tolist() for length in lengths]


def test_what_there_is() -> None:
    assert all(paged_attention_instructions(dtype)[0] == "scalar" for dtype in TYPES)
    assert all(set(paged_attention_instructions(dtype)) <= set(ATTENTION) for dtype in TYPES)
    assert paged_attention_instructions("q6_K") == ()
    assert not paged_attention_chosen("q6_K")
    assert all(paged_attention_chosen(t) == (len(paged_attention_instructions(t)) > 1) for t in TYPES)


@pytest.mark.parametrize(("dtype", "name"), kernels(KERNELS))
@pytest.mark.parametrize("shape", slow_except(SHAPES.values(), *QUICK_SHAPES, ids=SHAPES))
def test_against_numpy(backend: Backend, dtype: str, name: str, shape: Shape) -> None:
    lists = some_lists(shape.n_cells)
    given = numbers(shape, len(lists))
    got = attend(backend, shape, dtype, given, lists, name)
    assert np.abs(got - twin(shape, dtype, given, lists)).max() < tolerance(dtype, shape.dim)


@pytest.mark.parametrize(("dtype", "name"), kernels(case for case in KERNELS if case[0] not in BLOCKS))
@pytest.mark.parametrize("shape", ODD.values(), ids=ODD)
def test_heads_that_are_no_multiple_of_a_vector(backend: Backend, dtype: str, name: str, shape: Shape) -> None:
    lists = some_lists(shape.n_cells)
    given = numbers(shape, len(lists))
    got = attend(backend, shape, dtype, given, lists, name)
    assert np.abs(got - twin(shape, dtype, given, lists)).max() < tolerance(dtype, shape.dim)


@pytest.mark.parametrize("name", sets_for("f32"))
@pytest.mark.parametrize("cap", [1e-3, 1.0, 1e4, 1e6])
def test_scores_keep_their_digits_under_any_cap(backend: Backend, name: str, cap: float) -> None:
    """Trap: tanh by 1 - exp(-2 x) loses the digits of a small x, which a large cap multiplies again."""
    shape = Shape(2, 2, 64, 64, cap=cap)
    lists = some_lists(shape.n_cells)
    given = numbers(shape, len(lists))
    got = attend(backend, shape, "f32", given, lists, name)
    assert np.abs(got - twin(shape, "f32", given, lists)).max() < TOLERANCE


@pytest.mark.parametrize("n", [15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 4095, 4096, 4097, 6000])
def test_lists_of_every_length(backend: Backend, n: int) -> None:
    """Around the edges of vectors, tiles and pieces."""
    shape = Shape(1, 2, 32, 32, n_cells=n)
    lists = [list(range(n)), list(range(n - 1))]
    given = numbers(shape, 2)
    got = attend(backend, shape, "f16", given, lists)
    assert np.abs(got - twin(shape, "f16", given, lists)).max() < tolerance("f16", shape.dim)


@pytest.mark.slow
def test_partial_results_have_their_place() -> None:
    """4,096 cells have 16 pieces, 4,160 have 9 of twice the size: longer lists need not take more memory."""
    command = [sys.executable, "-m", "tests.ml.ops.paged_memory_child"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


STORABLE = [
    pytest.param(dtype, shape, id=f"{dtype} {name}", marks=() if name in QUICK_SHAPES else pytest.mark.slow)
    for dtype in TYPES
    for name, shape in {**SHAPES, "72": ODD["72"]}.items()
    if dtype not in BLOCKS or shape.dim % 32 == shape.value_dim % 32 == 0
]


def same_bits(
    backends: tuple[Backend, ...], dtype: str, shape: Shape, lists: Lists, record_property: RecordProperty
) -> None:
    """With every instruction set and on all of these."""
    given = numbers(shape, len(lists))
    expected = attend(backends[0], shape, dtype, given, lists, "scalar").tobytes()
    for name in every_set(dtype, record_property):
        for some in backends:
            assert attend(some, shape, dtype, given, lists, name).tobytes() == expected, (name, some.threads)


@pytest.mark.parametrize(("dtype", "shape"), STORABLE)
def test_every_instruction_set_gives_the_same_bits(
    backend: Backend, dtype: str, shape: Shape, record_property: RecordProperty
) -> None:
    shape = replace(shape, n_cells=70)
    same_bits((backend,), dtype, shape, [*some_lists(shape.n_cells)[1:], list(range(70))], record_property)


@pytest.mark.parametrize("shape", [SHAPES["groups of 3"], SHAPES["softcap and sinks"]], ids=["plain", "softcap, sinks"])
@pytest.mark.parametrize("dtype", TYPES)
def test_joined_pieces_have_the_same_bits(
    backend: Backend, one_thread: Backend, dtype: str, shape: Shape, record_property: RecordProperty
) -> None:
    """Of 1500 cells there are several, of 6000 as many as there can be."""
    shape = replace(shape, n_cells=6000)
    lists = [list(range(1500)), list(range(5999, -1, -1)), [7]]
    same_bits((backend, one_thread), dtype, shape, lists, record_property)


@pytest.mark.parametrize("dtype", TYPES)
def test_it_does_not_matter_where_cells_lie(backend: Backend, dtype: str) -> None:
    shape = Shape(2, 4, 64, 64, n_cells=900)
    given = numbers(shape, 1)
    places = np.random.default_rng(1).permutation(shape.n_cells)
    there = replace(given, keys=np.empty_like(given.keys), values=np.empty_like(given.values))
    there.keys[places], there.values[places] = given.keys, given.values
    order = list(range(700))
    here = attend(backend, shape, dtype, given, [order])
    assert attend(backend, shape, dtype, there, [places[order].tolist()]).tobytes() == here.tobytes()


def test_a_row_does_not_see_the_others_nor_the_threads(backend: Backend, one_thread: Backend) -> None:
    shape = Shape(2, 4, 64, 64, n_cells=2000)
    rng = np.random.default_rng(2)
    lists = [rng.permutation(shape.n_cells)[: rng.integers(0, 2000)].tolist() for _ in range(33)]
    given = numbers(shape, len(lists))
    together = attend(backend, shape, "f16", given, lists, layers=3)
    for row in range(0, len(lists), 4):
        alone = replace(given, query=given.query[row : row + 1])
        for some in (backend, one_thread):
            assert attend(some, shape, "f16", alone, [lists[row]]).tobytes() == together[row].tobytes(), row


WINDOWS = [0, 1, 5, 30, 64, 100, 300, 1000]
"""0: a row sees all cells up to its own."""


def prompt(n_cells: int, rows: int, window: int) -> tuple[Lists, list[list[int]], list[int]]:
    """Rows of one sequence with a sliding window, as the cache lists them: their cells, ranges and phases.

    The list begins with the first cell that any row sees.
    """
    own = np.arange(n_cells - rows, n_cells)
    first = np.maximum(own - window + 1, 0) if window else np.zeros_like(own)
    order = np.random.default_rng(n_cells + window).permutation(n_cells)[first[0] :]
    ranges = np.stack([first, own + 1], axis=1) - first[0]
    return [order[a:b].tolist() for a, b in ranges], ranges.tolist(), first.tolist()


@pytest.mark.parametrize("shape", slow_except(["no groups", "groups of 3", "softcap and sinks"], "softcap and sinks"))
@pytest.mark.parametrize("window", slow_except(WINDOWS, 0, 100))
def test_rows_of_a_prompt_are_computed_together(
    backend: Backend, one_thread: Backend, window: int, shape: str, record_property: RecordProperty
) -> None:
    """With the bits that each gets alone, which are right; with every instruction set, and beside other sequences."""
    sizes, rows = replace(SHAPES[shape], n_cells=700), 150
    lists, ranges, phases = prompt(sizes.n_cells, rows, window)
    given = numbers(sizes, rows)
    whole = max(lists, key=len) if not window else [cell for cells in lists for cell in cells[-1:]]
    listed = lists[0] + whole[1:] if window else whole
    for name in every_set("f16", record_property):
        for some in (backend, one_thread):
            once = [listed, *[[]] * (rows - 1)]
            together = attend(some, sizes, "f16", given, once, name, parts=ranges, phases=phases)
            if name == "scalar" and some is backend:
                expected = together
                assert np.abs(together - twin(sizes, "f16", given, lists)).max() < tolerance("f16", sizes.dim)
            assert together.tobytes() == expected.tobytes(), name
    for row in (0, 1, 63, 64, rows - 1):
        alone = replace(given, query=given.query[row : row + 1])
        found = attend(one_thread, sizes, "f16", alone, [lists[row]], phases=phases[row : row + 1])
        assert found.tobytes() == together[row].tobytes(), row


@pytest.mark.parametrize("rows", [2, 5, 12, 50])
@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize(("n", "kv_heads"), [(200, 1), (258, 1), (258, 3), (514, 3)])
def test_rows_of_a_draft_at_the_end_of_a_piece(
    backend: Backend, one_thread: Backend, dtype: str, rows: int, n: int, kv_heads: int, record_property: RecordProperty
) -> None:
    """Some have a piece more than the others, beside rows of another sequence; with one key head and few pieces they
    are several units of work, so that each thread gets some."""
    shape = Shape(kv_heads, 3, 64, 64, n_cells=n)
    draft = [[0, n - rows + 1 + row] for row in range(rows)]
    ranges = draft if kv_heads == 1 else [[0, 5], *draft, [7, n + 12]]
    given = numbers(shape, len(ranges))
    listed = [*range(n), *range(12)]
    for name in every_set(dtype, record_property):
        for some in (backend, one_thread):
            found = attend(some, shape, dtype, given, [listed, *[[]] * (len(ranges) - 1)], name, parts=ranges)
            for row, (begin, end) in enumerate(ranges):
                alone = replace(given, query=given.query[row : row + 1])
                expected = attend(one_thread, shape, dtype, alone, [listed[begin:end]], name)
                assert expected.tobytes() == found[row].tobytes(), (name, row)


MANY = {
    "groups of 4": Shape(2, 4, 64, 64), "longer values": Shape(1, 7, 64, 128), "odd values": Shape(2, 3, 80, 40),
    "no groups, wide": Shape(2, 1, 256, 256), "wider than are unpacked": Shape(1, 2, 288, 64),
}  # fmt: skip


@pytest.mark.parametrize("shape", slow_except(MANY.values(), "odd values", ids=MANY))
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [20, 100])
def test_many_rows_wherever_their_cells_lie(
    one_thread: Backend, dtype: str, shape: Shape, rows: int, record_property: RecordProperty
) -> None:
    """Beside rows of another sequence, as plain C adds them up one query at a time, and as each row gets alone."""
    if dtype in BLOCKS and (shape.dim % 32 or shape.value_dim % 32):
        shape = replace(shape, dim=96, value_dim=32)
    shape = replace(shape, n_cells=300)
    given = numbers(shape, rows + 1)
    places = np.random.default_rng(rows).permutation(shape.n_cells)
    there = replace(given, keys=np.empty_like(given.keys), values=np.empty_like(given.values))
    there.keys[places], there.values[places] = given.keys, given.values
    ranges = [[0, shape.n_cells - rows + 1 + row] for row in range(rows)] + [[5, 290]]
    once = [list(range(shape.n_cells)), *[[]] * rows]
    scattered = [places.tolist(), *[[]] * rows]
    expected = attend(one_thread, shape, dtype, given, once, "scalar", parts=ranges)
    for name in every_set(dtype, record_property):
        found = attend(one_thread, shape, dtype, there, scattered, name, parts=ranges)
        assert found.tobytes() == expected.tobytes(), name
    alone = replace(given, query=given.query[3:4])
    cells = list(range(ranges[3][1]))
    assert attend(one_thread, shape, dtype, alone, [cells]).tobytes() == expected[3].tobytes()


@pytest.mark.parametrize("name", sets_for("f16"))
def test_rows_of_a_prompt_do_not_see_nan_behind_them(one_thread: Backend, name: str) -> None:
    """A cell of their own tile, which later rows see."""
    shape, rows = Shape(2, 4, 64, 64, n_cells=200), 90
    given = numbers(shape, rows)
    given.values[150], given.keys[150] = np.nan, np.inf
    ranges = [[0, shape.n_cells - rows + 1 + row] for row in range(rows)]
    got = attend(one_thread, shape, "f16", given, [list(range(200)), *[[]] * (rows - 1)], name, parts=ranges)
    before = [end <= 150 for _, end in ranges]
    assert np.isfinite(got[before]).all()
    assert np.isnan(got[np.logical_not(before)]).all()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", slow_except(SHAPES.values(), *QUICK_SHAPES, ids=SHAPES))
def test_against_ggml(backend: Backend, dtype: str, shape: Shape) -> None:
    """Which rounds queries to the keys' type, and sums f16 values in f16."""
    lists = [sorted(cells) for cells in some_lists(shape.n_cells)]
    given = numbers(shape, len(lists))
    ours = attend(backend, shape, dtype, given, lists)
    theirs = attend(backend, shape, dtype, given, lists, masked=True)
    allowed = {"f32": 2e-5, "f16": 2e-2, "bf16": 8e-2, "q8_0": 8e-2}.get(dtype, 1.0)
    assert np.abs(ours - theirs).max() < allowed


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", TYPES[1:])
def test_as_near_to_exact_numbers_as_ggml(backend: Backend, dtype: str, dim: int) -> None:
    """Rounding keys and queries costs less than ggml's, for rows that decode."""
    shape = Shape(2, 4, dim, dim, n_cells=1000)
    lists = [list(range(1000)), list(range(500))]
    given = numbers(shape, 2)
    exact = twin(shape, dtype, given, lists)
    ours, theirs = (
        float(np.sqrt(np.mean((attend(backend, shape, dtype, given, lists, masked=masked) - exact) ** 2)))
        for masked in (False, True)
    )
    assert ours < theirs
    assert ours < 1e-4


@pytest.mark.parametrize("name", sets_for("f16"))
@pytest.mark.parametrize("where", [0, 31, 63])
def test_keys_of_which_one_number_is_large(backend: Backend, name: str, where: int) -> None:
    """As channels of real keys are: beside it the others have fewer digits."""
    shape = Shape(1, 2, 64, 64, n_cells=300)
    lists = [list(range(300))]
    given = numbers(shape, 1)
    given.keys[..., where] *= 30
    got = attend(backend, shape, "f16", given, lists, name)
    lengths = np.linalg.norm(given.keys, axis=-1).max() / np.sqrt(shape.dim)
    assert np.abs(got - twin(shape, "f16", given, lists)).max() < tolerance("f16", shape.dim) * lengths


@pytest.mark.parametrize("name", sets_for("f16"))
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e4])
def test_queries_of_any_length(backend: Backend, name: str, size: float) -> None:
    """Those of no length weigh all cells alike; of long ones and one cell, nothing overflows."""
    shape = Shape(1, 2, 128, 64, n_cells=80)
    lists = [list(range(80)), [3]]
    given = numbers(shape, 2)
    given.query[:] = given.query * size if size < 1 else np.sign(given.keys[3]) * size
    given.keys[3] = np.sign(given.keys[3]) * size if size > 1 else given.keys[3]
    got = attend(backend, shape, "f16", given, lists, name)
    assert np.abs(got - twin(shape, "f16", given, lists)).max() < TOLERANCE


@pytest.mark.parametrize("name", sets_for("f16"))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_cells_that_are_not_listed_are_not_read(backend: Backend, name: str, bad: float) -> None:
    shape = Shape(n_cells=50)
    given = numbers(shape, 2)
    lists = [list(range(20)), list(range(30, 50))]
    clean = attend(backend, shape, "f16", given, lists, name)
    given.keys[20:30], given.values[20:30] = bad, bad
    assert attend(backend, shape, "f16", given, lists, name).tobytes() == clean.tobytes()


@pytest.mark.parametrize("name", sets_for("f16"))
@pytest.mark.parametrize("where", ["keys", "values"])
def test_nan_in_a_listed_cell_is_told(backend: Backend, name: str, where: str) -> None:
    """Of the rows that see it, and only of these."""
    shape = Shape(n_cells=600)
    given = numbers(shape, 2)
    getattr(given, where)[17] = np.nan
    got = attend(backend, shape, "f16", given, [list(range(600)), list(range(20, 600))], name)
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1]).all()


@pytest.mark.parametrize("name", sets_for("f32"))
@pytest.mark.parametrize("size", [1e12, 1e9, 1e4, 1e-30])
def test_scores_of_any_size(backend: Backend, name: str, size: float) -> None:
    """Far apart, the largest one decides alone; close together, all count alike."""
    shape = Shape(n_cells=128)  # whole tiles: their scores are scaled last
    lists = [list(range(128))]
    given = numbers(shape, 1)
    given = replace(given, query=given.query * np.float32(size))
    got = attend(backend, shape, "f32", given, lists, name)
    assert np.abs(got - twin(shape, "f32", given, lists)).max() < (2e-2 if size > 1 else TOLERANCE)


# -- refusals ----------------------------------------------------------------------------------------------------------


def call(backend: Backend, with_parts: Any, with_cells: Any, **changed: Any) -> None:
    """One with two rows, of which one thing may be different."""
    with Context(backend) as ctx:
        given: dict[str, Any] = {
            "q": ctx.from_floats(np.zeros((4, 2, 32))), "k": ctx.zeros("f16", (32, 9, 2)),
            "v": ctx.zeros("f16", (32, 9, 2)), "parts": ctx.from_ints(with_parts), "cells": ctx.from_ints(with_cells),
        }  # fmt: skip
        given.update({name: make(ctx) if callable(make) else make for name, make in changed.items()})
        out = ops.paged_attention(**given)
        ctx.forward(out)
        ctx.compute()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"q": lambda ctx: ctx.zeros("f16", (32, 2, 4))}, "q is f32"),
        ({"q": lambda ctx: ctx.zeros("f32", (16, 2, 4))}, "do not fit"),
        ({"q": lambda ctx: ctx.zeros("f32", (32, 2, 3))}, "do not fit"),
        ({"q": lambda ctx: ctx.zeros("f32", (32, 2, 4, 2))}, "up to 3 dimensions"),
        ({"q": lambda ctx: ops.permute(ctx.zeros("f32", (2, 32, 4)), 1, 0, 2, 3)}, "contiguous rows"),
        ({"k": lambda ctx: ctx.zeros("f32", (32, 9, 2))}, "both f32, f16"),
        ({"k": lambda ctx: ctx.zeros("f16", (32, 8, 2))}, "do not fit"),
        ({"parts": lambda ctx: ctx.zeros("i32", (2, 3))}, r"i32 \[2, 2\]"),
        ({"parts": lambda ctx: ctx.zeros("i64", (2, 2))}, r"i32 \[2, 2\]"),
        ({"cells": lambda ctx: ctx.zeros("i32", (2, 3))}, r"i32 \[n\]"),
        ({"sinks": lambda ctx: ctx.zeros("f32", (3,))}, r"f32 \[4\]"),
        ({"phases": lambda ctx: ctx.zeros("i32", (3,))}, r"phases are i32 \[2\]"),
        ({"phases": lambda ctx: ctx.zeros("f32", (2,))}, r"phases are i32 \[2\]"),
        *(({"softcap": cap}, "softcap is 0 for none, or 0.001 to") for cap in (-1.0, -1e-300, 1e-300, 2.0**80, np.inf)),
        ({"scale": float("nan")}, "finite"),
        ({"instructions": "sse9"}, "no 'sse9' kernel"),
    ],
)
def test_refusals(backend: Backend, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ShapeError, match=said):
        call(backend, [[0, 3], [3, 5]], [0, 1, 2, 3, 4], **changed)


@pytest.mark.parametrize(
    ("parts", "cells"),
    [
        ([[0, 6], [0, 1]], [0, 1, 2, 3, 4]),
        ([[-1, 2], [0, 1]], [0, 1, 2]),
        ([[0, 1], [0, 1]], [9]),
        ([[0, 1]] * 2, [-1]),
    ],
)
def test_numbers_out_of_range(backend: Backend, parts: Any, cells: Any) -> None:
    with pytest.raises(ShapeError, match="row numbers are"):
        call(backend, parts, cells)


def test_a_part_that_ends_before_it_begins_is_empty(backend: Backend) -> None:
    shape = Shape(n_cells=9)
    given = numbers(shape, 2)
    got = attend(backend, shape, "f16", given, [[4, 3], [2, 1, 0]], parts=[[5, 2], [1, 4]])
    assert got.tobytes() == attend(backend, shape, "f16", given, [[], [3, 2, 1]]).tobytes()
    assert not got[0].any()
    assert got[1].any()
