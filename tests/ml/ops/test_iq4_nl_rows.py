"""Rows of iq4_nl that our own operation writes: the bytes are ggml's, which its copy of the same numbers writes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage

BLOCK, BYTES = 32, 18
LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
HALFWAY = (LEVELS[1:] + LEVELS[:-1]) / 2


def both(x: NDArray[np.float32], threads: int = 1, index: str = "i64") -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Blocks of bytes, [n, 18], of the rows `x` written by set_rows, in an order of their own, and by ggml's copy."""
    places = np.random.default_rng(len(x)).permutation(len(x))
    with Backend(BackendParams(threads=threads, gpu_layers=0)) as backend, Storage(backend, 1) as storage:
        table = storage.add("table", "iq4_nl", x.shape[::-1])
        storage.allocate(0)
        with Context(backend) as ctx:
            rows = ctx.from_floats(x)
            ctx.expand(ops.set_rows(table, rows, ctx.from_ints(places, dtype=index)))
            copied = ctx.zeros("iq4_nl", x.shape[::-1])
            ctx.expand(ops.copy(rows, copied))
            ctx.alloc()
            ctx.compute()
            ours, ggml = (np.frombuffer(each.numpy().tobytes(), np.uint8) for each in (table, copied))
    return ours.reshape(len(x), -1)[places].reshape(-1, BYTES), ggml.reshape(-1, BYTES)


def counted(x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Blocks whose codes ggml sets; those of a smaller one are what its memory happened to hold."""
    sizes = np.abs(x.reshape(-1, BLOCK))
    return np.asarray(np.where(np.isnan(sizes), 0, sizes).max(1) >= np.float32(1e-15))


def random_rows(rng: np.random.Generator) -> NDArray[np.floating]:
    return rng.standard_normal((2000, 9 * BLOCK)) * np.exp(rng.uniform(-30, 30, (2000, 1)))


def whole_numbers(rng: np.random.Generator) -> NDArray[np.floating]:
    """Many of one size, of both signs, and many zeros of both signs: the first of the largest decides the sign."""
    sizes = np.round(random_rows(rng) * rng.choice([1.0, 1e-9], (2000, 1)))
    return np.asarray(sizes * rng.choice([-1.0, 1.0], sizes.shape))


def halfway(rng: np.random.Generator) -> NDArray[np.floating]:
    """Numbers between two levels exactly, and their neighbours; scales are powers of two, so that they stay so."""
    near = [HALFWAY, np.nextafter(HALFWAY, np.float32(-200)), np.nextafter(HALFWAY, np.float32(200)), LEVELS]
    x = rng.choice(np.concatenate(near), (2000, 9 * BLOCK))
    x[:, rng.integers(0, BLOCK) :: BLOCK] = -127
    return np.asarray(x * np.ldexp(np.float32(1), rng.integers(-20, 20, (2000, 1))) * rng.choice([-1, 1], (2000, 1)))


def tiny(rng: np.random.Generator) -> NDArray[np.floating]:
    """Scales that are 0 in half precision: from 1e-15 on with the sign of the scale, below without."""
    return rng.uniform(-1, 1, (2000, 9 * BLOCK)) * 10.0 ** rng.uniform(-17, -13, (2000, 1))


def wild(rng: np.random.Generator) -> NDArray[np.float32]:
    """Infinite numbers, NaN, denormal and the largest ones: scales that no half float holds, or none at all."""
    few = np.array([np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, -3e38, 0.0, -0.0, 1e-15, 9e-16, 1.0], np.float32)
    x = rng.standard_normal((2000, 9 * BLOCK)).astype(np.float32)
    return np.where(rng.random(x.shape) < rng.choice([0.01, 0.5], (2000, 1)), rng.choice(few, x.shape), x)


@pytest.mark.parametrize("make", [random_rows, whole_numbers, halfway, tiny, wild], ids=lambda make: make.__name__)
@pytest.mark.parametrize(("threads", "index"), [(1, "i64"), (2, "i32")])
def test_the_bytes_are_those_of_ggml(
    make: Callable[[np.random.Generator], NDArray[np.floating]], threads: int, index: str
) -> None:
    with np.errstate(all="ignore"):
        x = make(np.random.default_rng(threads)).astype(np.float32)
    ours, ggml = both(x, threads, index)
    chosen = counted(x)
    assert chosen.sum() > 1000
    np.testing.assert_array_equal(ours[chosen], ggml[chosen])
    np.testing.assert_array_equal(ours[:, :2], ggml[:, :2])


@pytest.mark.parametrize("blocks", [1, 7, 8, 9, 17])
def test_rows_of_any_length(blocks: int) -> None:
    x = np.random.default_rng(blocks).standard_normal((3, blocks * BLOCK)).astype(np.float32)
    np.testing.assert_array_equal(*both(x))


def test_what_is_too_small_for_a_scale_is_the_same_in_any_company() -> None:
    x = np.random.default_rng(0).standard_normal((2, 8 * BLOCK)).astype(np.float32)
    x[:, 3 * BLOCK : 4 * BLOCK] = [[0.0], [9e-16]]
    ours, _ = both(x)
    alone, _ = both(x[:, 3 * BLOCK : 4 * BLOCK])
    np.testing.assert_array_equal(ours[[3, 11]], alone)


def test_other_rows_stay_as_they_are() -> None:
    x = np.random.default_rng(0).standard_normal((2, BLOCK)).astype(np.float32)
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend, Storage(backend, 1) as storage:
        table = storage.add("table", "iq4_nl", (BLOCK, 5))
        storage.allocate(0)
        table.set_bytes(np.full(5 * BYTES, 7, np.uint8))
        with Context(backend) as ctx:
            ctx.expand(ops.set_rows(table, ctx.from_floats(x), ctx.from_ints([3, 1], dtype="i64")))
            ctx.alloc()
            ctx.compute()
        raw = np.frombuffer(table.numpy().tobytes(), np.uint8).reshape(5, BYTES)
    np.testing.assert_array_equal(raw[[0, 2, 4]], np.full((3, BYTES), 7))
    np.testing.assert_array_equal(raw[[3, 1]], both(x)[1])
