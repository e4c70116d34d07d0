"""Inputs of graphs on a worker: they lie there, each step's are sent in one piece, and they behave as others do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from tests.support.workers import RunningWorker, running_worker

TABLE = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    with running_worker(tmp_path_factory.mktemp("worker")) as running:
        yield running


@contextmanager
def table(worker: RunningWorker) -> Iterator[tuple[Backend, Tensor]]:
    """A weight on the worker."""
    with Backend(BackendParams(threads=1, devices=(worker.address,))) as backend, Storage(backend, 1) as storage:
        made = storage.add("table", "f32", (4, 10))
        storage.allocate(0)
        storage.mark_weights()
        made.set(TABLE)
        yield backend, made


def looked_up(ctx: Context, rows: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The numbers of `n` rows, an input, and the rows."""
    ids = ctx.input("i32", (n,))
    out = ops.get_rows(rows, ids)
    ctx.forward(out)
    ctx.alloc()
    return ids, out


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_all_inputs_are_one_message(worker: RunningWorker) -> None:
    with table(worker) as (backend, rows), Context(backend) as ctx:
        ids, bias, factor = ctx.input("i32", (3,)), ctx.input("f32", (4, 3)), ctx.input("f32", (1,))
        out = (ops.get_rows(rows, ids) + bias) * factor
        ctx.forward(out)
        ctx.alloc()
        for step in range(3):
            before = backend.workers[0].counts()
            picked, added = (np.arange(3, dtype=np.int32) + step), np.full((3, 4), step, np.float32)
            ids.set(picked)
            bias.set(added)
            factor.set(np.float32([2]))
            np.testing.assert_array_equal(ids.numpy(), picked)
            assert backend.workers[0].counts() == before, "neither writing nor reading inputs asks the worker"
            ctx.compute()
            np.testing.assert_array_equal(out.numpy(), (TABLE[picked] + added) * 2)
            after = backend.workers[0].counts()
            assert after["messages"] - before["messages"] == 3, "inputs, graph, result"
            assert after["round_trips"] - before["round_trips"] == 1


def test_row_numbers_are_checked_before_they_are_sent(worker: RunningWorker) -> None:
    with table(worker) as (backend, rows), Context(backend) as ctx:
        ids, out = looked_up(ctx, rows, 2)
        before = backend.workers[0].counts()
        for bad in ((0, 10), (-1, 0)):
            ids.set(i32(*bad))
            with pytest.raises(ShapeError, match="row numbers"):
                ctx.compute()
        assert backend.workers[0].counts() == before
        ids.set(i32(9, 0))
        ctx.compute()
        np.testing.assert_array_equal(out.numpy(), TABLE[[9, 0]])
        with pytest.raises(ShapeError, match="not set since"):
            ctx.compute()


def test_contexts_take_turns(worker: RunningWorker) -> None:
    """The second graph is larger; what was written for the first is lost with its memory."""
    with table(worker) as (backend, rows), Context(backend) as first, Context(backend) as second:
        graphs = []
        for ctx, n in ((first, 2), (second, 300)):
            ids = ctx.input("i32", (n,))
            out = ops.get_rows(rows, ids)
            ctx.forward(out)
            graphs.append((ctx, ids, out, n))
        for ctx, ids, out, n in graphs * 2:
            ctx.alloc()
            picked = np.arange(n, dtype=np.int32)[::-1] % 10
            ids.set(picked)
            ctx.compute()
            np.testing.assert_array_equal(out.numpy(), TABLE[picked])
        with pytest.raises(ShapeError, match="no memory any more"):
            graphs[0][1].set(i32(0, 1))


def test_an_input_that_the_cpu_reads_too_stays_here(worker: RunningWorker) -> None:
    own = np.arange(12, dtype=np.float32).reshape(3, 4)
    with table(worker) as (backend, rows), Storage(backend, 1) as storage, Context(backend) as ctx:
        here = storage.add("here", "f32", (4, 3))
        storage.allocate(1)
        storage.mark_weights()
        here.set(own)
        ids = ctx.input("i32", (2,))
        out, local = ops.get_rows(rows, ids), ops.get_rows(here, ids)
        ctx.forward(out, local)
        ctx.alloc()
        ids.set(i32(2, 1))
        ctx.compute()
        np.testing.assert_array_equal(out.numpy(), TABLE[[2, 1]])
        np.testing.assert_array_equal(local.numpy(), own[[2, 1]])


def test_views_of_inputs(worker: RunningWorker) -> None:
    with table(worker) as (backend, rows), Context(backend) as ctx:
        both = ctx.input("i32", (4,))
        first, last = ops.view(both, (2,)), ops.view(both, (2,), offset=8)
        out = ops.get_rows(rows, first) + ops.get_rows(rows, last)
        ctx.forward(out)
        ctx.alloc()
        both.set(i32(1, 2, 5, 6))
        np.testing.assert_array_equal(last.numpy(), [5, 6])
        before = backend.workers[0].counts()["messages"]
        ctx.compute()  # a graph is sent and not waited for
        np.testing.assert_array_equal(out.numpy(), TABLE[[1, 2]] + TABLE[[5, 6]])
        assert backend.workers[0].counts()["messages"] - before == 3, "one input, the graph, one result"


def test_rows_of_a_result(worker: RunningWorker) -> None:
    with table(worker) as (backend, rows), Context(backend) as ctx:
        ids, out = looked_up(ctx, rows, 5)
        ids.set(i32(4, 3, 2, 1, 0))
        ctx.compute()
        before = backend.workers[0].counts()["bytes_received"]
        found = np.empty((2, 4), np.float32)
        ctx.read_rows(out, 1, found)
        np.testing.assert_array_equal(found, TABLE[[3, 2]])
        assert backend.workers[0].counts()["bytes_received"] - before == 8 + found.nbytes
        for first, shape in ((4, (2, 4)), (-1, (1, 4)), (0, (1, 3))):
            with pytest.raises(ShapeError, match="are none of"):
                ctx.read_rows(out, first, np.empty(shape, np.float32))
        for wrong in (found.astype(np.float64), found[:, ::2], None):
            with pytest.raises(ShapeError, match="writable float32"):
                ctx.read_rows(out, 0, wrong)  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match="of this context"):
            ctx.read_rows(rows, 0, found)
