"""Scenes in which products of few rows read weights that lie alone: what is next to them may not be read."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.ops.small_batch import small_batch_instructions
from tests.ml.graph.scenes import new_backend, scene
from tests.ml.ops.small_batch_weights import QUANTIZED, TYPES, Bytes, raw_weights

ROWS_OF_WEIGHTS = (1, 2, 3, 5, 16, 17)
PAGE = mmap.PAGESIZE
NO_ACCESS = 0  # PROT_NONE


@contextmanager
def guarded(raw: Bytes) -> Iterator[mmap.mmap]:
    """Memory that begins with these bytes, behind a page that cannot be read."""
    room = mmap.mmap(-1, PAGE + -(-raw.nbytes // PAGE) * PAGE)
    room[PAGE : PAGE + raw.nbytes] = raw.tobytes()
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(room)))
    assert libc.mprotect(start, ctypes.c_size_t(PAGE), NO_ACCESS) == 0, ctypes.get_errno()
    yield room


def products(dtype: str, m: int, rows: int, name: str, *, experts: bool) -> None:
    raw = raw_weights(dtype, m, 256)
    with guarded(raw) as room, new_backend() as backend, Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", dtype, (256, m, 1) if experts else (256, m))
        storage.map(memoryview(room)[PAGE:], {"w": 0})
        x = np.ones((rows, 256), dtype=np.float32)
        if experts:
            ids = ctx.from_ints(np.zeros((rows, 1), dtype=np.int32))
            y = ops.mul_mat_id_small_batch(weight, ctx.from_floats(x.reshape(rows, 1, 256)), ids, name)
        else:
            y = ops.mul_mat_small_batch(weight, ctx.from_floats(x), name)
        ctx.forward(y)
        ctx.compute()
        assert np.isfinite(y.numpy()).all()


@scene
def weights_with_nothing_before_them() -> None:
    for dtype in TYPES:
        for name in small_batch_instructions(dtype):
            for m in ROWS_OF_WEIGHTS:
                for rows in (1, 3):
                    products(dtype, m, rows, name, experts=False)


@scene
def experts_with_nothing_before_them() -> None:
    for dtype in QUANTIZED:
        for m in ROWS_OF_WEIGHTS:
            for rows in (1, 3):
                products(dtype, m, rows, small_batch_instructions(dtype)[-1], experts=True)
