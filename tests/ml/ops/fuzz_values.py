"""Random tensors together with the values they stand for, for the fuzz test of the operations."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import block_of, dtypes
from tests.ml.ops import reference as ref

PLAIN = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i64": np.int64}
INTERNAL = ("q8_1", "q8_K")
"""Types of ggml's kernels that no file stores."""
UNIT = ("f32", "f16", "bf16", "i32", "i64", "i8", "i16", "f64")
"""Types without blocks."""


@dataclass(eq=False)
class Value:
    """A tensor, its values in numpy's order with four dimensions, and how far they may be off."""

    tensor: Tensor
    array: NDArray
    dtype: str
    tol: float = 0.0
    wild: bool = False
    """Holds nan, infinities or huge numbers: what is computed from them is not compared."""
    parents: tuple[Value, ...] = ()
    feed: NDArray | None = None
    """What an input is set to before each compute."""
    where: str = "graph"

    @property
    def shape(self) -> tuple[int, ...]:
        """Four dimensions in ggml's order."""
        return self.array.shape[::-1]


@dataclass
class Call:
    """An operation by name and its arguments, some of which are `Value`s."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = [show(a) for a in self.args] + [f"{k}={show(v)}" for k, v in self.kwargs.items()]
        return f"{self.name}({', '.join(shown)})"


def show(argument: Any) -> str:
    if isinstance(argument, Value):
        strided = "" if not argument.tensor.owner or argument.tensor.contiguous else " strided"
        return f"{argument.dtype}{list(argument.shape)}{strided} {argument.where}"
    try:
        return repr(argument)[:80]
    except Exception:
        return type(argument).__name__


def unit_of(dtype: str) -> tuple[int, int]:
    """Bytes and elements of one block."""
    elements, size = block_of(dtype)
    return size, elements


class Bank:
    """Blocks of every quantized type with the values they stand for, all of them finite and of modest size."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self.blocks: dict[str, tuple[NDArray[np.uint8], NDArray[np.float32]]] = {}
        rng = np.random.default_rng(seed)
        for dtype in dtypes():
            if dtype in UNIT or dtype in INTERNAL:
                continue
            raw = rng.integers(0, 256, (1024, unit_of(dtype)[0]), dtype=np.uint8)
            values = dequantize(backend, dtype, raw)
            size = np.abs(values).max(axis=1)
            good = np.isfinite(values).all(axis=1) & (size < 64) & (size > 1e-3)
            assert good.sum() >= 8, f"too few usable blocks of {dtype}"
            self.blocks[dtype] = raw[good], values[good]

    def draw(self, rng: np.random.Generator, dtype: str, n: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        raw, values = self.blocks[dtype]
        chosen = rng.integers(0, len(raw), n)
        return raw[chosen], values[chosen]


def dequantize(backend: Backend, dtype: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """By the `gguf` package; by ggml itself for the few types which that one cannot read."""
    raw = raw.reshape(-1, unit_of(dtype)[0])
    with np.errstate(all="ignore"):
        try:
            return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[dtype.upper()])
        except (NotImplementedError, KeyError):
            return _dequantize_with_ggml(backend, dtype, raw)


def _dequantize_with_ggml(backend: Backend, dtype: str, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    with Context(backend) as ctx:
        table = ctx.empty(dtype, (unit_of(dtype)[1], len(raw)))
        table.set(raw)
        rows = ops.get_rows(table, ctx.from_ints(np.arange(len(raw))))
        ctx.forward(rows)
        ctx.compute()
        return rows.numpy()


@dataclass
class Env:
    """One context being filled at random."""

    backend: Backend
    bank: Bank
    rng: random.Random
    numbers: np.random.Generator
    ctx: Context
    pool: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    oddities: list[Any] = field(default_factory=list)
    calls: int = 0
    tainted: bool = False
    """An exchanged target was written over, which other calls may read."""
    doomed: bool = False
    """Some row numbers are out of range, so that computing raises."""

    def dims(self, rank: int | None = None, largest: int = 9) -> tuple[int, ...]:
        rank = rank or self.rng.choice((1, 2, 2, 3, 3, 4))
        return tuple(self.rng.randint(1, largest) for _ in range(rank))

    # -- data ----------------------------------------------------------------------------------------------------------

    def floats(self, n: int, *, wild: bool = False) -> NDArray[np.float32]:
        out = self.numbers.normal(0, self.rng.choice((0.3, 1.0, 3.0)), n).astype(np.float32)
        if wild:
            odd = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-42, 0.0, -0.0], dtype=np.float32)
            places = self.numbers.random(n) < 0.3
            out[places] = self.numbers.choice(odd, places.sum())
        return out

    def payload(self, dtype: str, n: int, *, wild: bool = False, limit: int = 8) -> tuple[NDArray, NDArray]:
        """Bytes for a tensor of n elements (as an array that Tensor.set takes), and the values they stand for."""
        if dtype in ("i32", "i64"):
            ints = self.numbers.integers(0, limit, n).astype(PLAIN[dtype])
            return ints, ints
        if dtype in ("f32", "f16"):
            with np.errstate(over="ignore"):
                data = self.floats(n, wild=wild).astype(PLAIN[dtype])
            return data, data
        if dtype == "bf16":
            values = ref.to_bf16(self.floats(n, wild=wild))
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8), values
        if dtype in UNIT or dtype in INTERNAL:
            size, block = unit_of(dtype)
            return np.zeros(n // block * size, dtype=np.uint8), np.zeros(n)
        raw, values = self.bank.draw(self.numbers, dtype, n // unit_of(dtype)[1])
        return raw.reshape(-1), values.reshape(-1)

    # -- tensors -------------------------------------------------------------------------------------------------------

    def make(self, dtype: str, shape: tuple[int, ...], *, data: NDArray | None = None, wild: bool = False,
             graph: bool = False, limit: int = 8) -> Value:  # fmt: skip
        """A new tensor by one of the ways there are to get one. `graph`: not a stored one."""
        n = int(np.prod(shape))
        raw, values = (data, data) if data is not None else self.payload(dtype, n, wild=wild, limit=limit)
        array = np.asarray(values).reshape(ref.shape_of(shape))
        how = self.rng.random()
        if how < 0.12 and not graph:
            tensor, feed, where = self._stored(dtype, shape, raw), None, "stored"
        elif how < 0.45:
            tensor, feed, where = self.ctx.input(dtype, shape, name=f"in{len(self.inputs)}"), raw, "graph"
            self.calls += 1
        else:
            tensor, feed, where = self._constant(dtype, shape, raw), None, "graph"
        value = Value(tensor, array, dtype, wild=wild, feed=feed, where=where)
        if feed is not None:
            self.inputs.append(value)
        return value

    def _constant(self, dtype: str, shape: tuple[int, ...], raw: NDArray) -> Tensor:
        self.calls += 1
        if dtype in ("f32", "f16") and self.rng.random() < 0.8:
            if self.rng.random() < 0.5:
                return self.ctx.from_floats(raw.reshape(shape[::-1]), dtype=dtype)
            return self.ctx.from_floats(raw, shape, dtype)
        if dtype in ("i32", "i64") and self.rng.random() < 0.8:
            return self.ctx.from_ints(raw.tolist(), shape, dtype)
        tensor = self.rng.choice((self.ctx.empty, self.ctx.zeros))(dtype, shape)
        tensor.set_bytes(raw)
        return tensor

    def _stored(self, dtype: str, shape: tuple[int, ...], raw: NDArray) -> Tensor:
        storage = Storage(self.backend, 1)
        tensor = storage.add("t", dtype, shape)
        storage.allocate(0)
        tensor.set_bytes(raw)
        self.storages.append(storage)
        return tensor

    def strided(self, value: Value) -> Value:
        """The same values, laid out in memory in another order of dimensions."""
        if value.dtype not in ("f32", "f16", "i32"):
            return value
        order = self.rng.sample(range(4), 4)
        inverse = [order.index(i) for i in range(4)]
        moved = ref.permute(value.array, order)
        data = np.ascontiguousarray(moved).reshape(-1).astype(PLAIN[value.dtype])
        base = self.make(value.dtype, moved.shape[::-1], data=data, wild=value.wild, graph=True)
        self.calls += 1
        tensor = ops.permute(base.tensor, *inverse)
        return Value(tensor, value.array, value.dtype, wild=value.wild, parents=(base,))

    def operand(self, dtype: str, shape: tuple[int, ...], *, graph: bool = False, odd: float = 0.12,
                limit: int = 8) -> Value:  # fmt: skip
        """A tensor of the given type and shape: out of the pool, or new; sometimes wild, sometimes strided."""
        four = tuple(shape) + (1,) * (4 - len(shape))
        known = [v for v in self.pool if v.dtype == dtype and v.shape == four and not (graph and v.where == "stored")]
        if known and self.rng.random() < 0.5:
            return self.rng.choice(known)
        value = self.make(dtype, shape, wild=dtype in ("f32", "f16") and self.rng.random() < 0.06, graph=graph,
                          limit=limit)  # fmt: skip
        if self.rng.random() < odd:
            value = self.strided(value)
        if dtype == "f32":
            self.pool.append(value)
        return value
