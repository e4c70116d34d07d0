"""Graphs of ggml's operations alone, called as C functions, to measure what the engine computes otherwise."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_bool, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ollama_engine.ml.graph.backend  # noqa: F401 (loads the libraries)

F32, I32 = 0, 26
"""ggml_type."""
MAX_N_THREADS, MAX_NODES = 512, 4096
BYTES = 3 << 30
"""Of addresses for tensors and results; what is not written takes no memory."""


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


class _ThreadpoolParams(ctypes.Structure):
    _fields_ = (
        ("cpumask", c_bool * MAX_N_THREADS), ("n_threads", c_int), ("prio", c_int), ("poll", c_uint32),
        ("strict_cpu", c_bool), ("paused", c_bool),
    )  # fmt: skip


class _Plan(ctypes.Structure):
    _fields_ = (
        ("work_size", c_size_t), ("work_data", c_void_p), ("n_threads", c_int), ("threadpool", c_void_p),
        ("abort_callback", c_void_p), ("abort_callback_data", c_void_p), ("use_ref", c_bool),
    )  # fmt: skip


def _library(name: str) -> ctypes.CDLL:
    """A library of ggml that the package has loaded already."""
    try:
        return ctypes.CDLL(f"lib{name}-oe.so")
    except OSError:
        raise SystemExit(f"lib{name}-oe.so is not loaded: measure with a build for this CPU alone, on Linux") from None


class GgmlGraph:
    """Tensors with memory of their own, and a graph that computes some. Threads wait for work, as in llama.cpp."""

    def __init__(self, threads: int) -> None:
        self._base, self._cpu = _library("ggml-base"), _library("ggml-cpu")
        self._ctx = c_void_p(self._of(self._base, "ggml_init", _InitParams(BYTES, None, False)))
        self._graph = c_void_p(self._of(self._base, "ggml_new_graph_custom", self._ctx, c_size_t(MAX_NODES), False))
        params = _ThreadpoolParams()
        self._base.ggml_threadpool_params_init(ctypes.byref(params), c_int(threads))
        self._pool = c_void_p(self._of(self._cpu, "ggml_threadpool_new", ctypes.byref(params)))
        self._threads, self._plan, self._work = threads, _Plan(), b""

    @staticmethod
    def _of(library: ctypes.CDLL, name: str, *values: Any) -> int:
        function = getattr(library, name)
        function.restype = c_void_p
        return function(*values) or 0

    def call(self, name: str, *values: Any) -> c_void_p:
        """`ggml_<name>(ctx, *values)`; whole numbers are passed as int64."""
        given = [c_int64(value) if isinstance(value, int) else value for value in values]
        return c_void_p(self._of(self._base, f"ggml_{name}", self._ctx, *given))

    def tensor(self, values: NDArray[Any]) -> c_void_p:
        """A tensor of these floats or whole numbers; its dimensions are those of the array from behind."""
        kind = I32 if values.dtype == np.int32 else F32
        dims = (c_int64 * values.ndim)(*values.shape[::-1])
        made = self.call("new_tensor", c_int(kind), c_int(values.ndim), dims)
        content = np.ascontiguousarray(values, np.int32 if kind == I32 else np.float32)
        ctypes.memmove(self._data(made), content.ctypes.data, content.nbytes)
        return made

    def _data(self, tensor: c_void_p) -> int:
        return self._of(self._base, "ggml_get_data", tensor)

    def floats(self, tensor: c_void_p, count: int) -> NDArray[np.float32]:
        """The first numbers of a tensor or result, copied."""
        return np.ctypeslib.as_array((ctypes.c_float * count).from_address(self._data(tensor))).copy()

    def add(self, results: Sequence[c_void_p]) -> None:
        """Compute these, after those that were added before."""
        for result in results:
            self._base.ggml_build_forward_expand(self._graph, result)

    def alloc(self) -> None:
        """Once everything is added."""
        planned = self._cpu.ggml_graph_plan
        planned.restype = _Plan
        self._plan = planned(self._graph, c_int(self._threads), self._pool)
        self._work = ctypes.create_string_buffer(self._plan.work_size + 64)
        self._plan.work_data = ctypes.addressof(self._work)

    def compute(self) -> None:
        status = self._cpu.ggml_graph_compute(self._graph, ctypes.byref(self._plan))
        assert status == 0, status

    def pause(self) -> None:
        """Threads no longer spin for work; the next `compute` wakes them."""
        self._cpu.ggml_threadpool_pause(self._pool)

    def close(self) -> None:
        self._cpu.ggml_threadpool_free(self._pool)
        self._base.ggml_free(self._ctx)
