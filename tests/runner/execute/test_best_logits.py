"""Rows of which a device finds the best logits give the tokens that whole rows give, or are fetched whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ollama_engine.input import FloatArray
from ollama_engine.ml.device.device import devices
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.runner.execute.best_logits import (
    LEAST_VOCABULARY,
    BestLogits,
    best_rows,
    level_of,
    make_best_logits,
    sparse_row,
    whole_runs,
)
from ollama_engine.sample import Sampler, SamplingParams

V = 1000
INF = np.float32(np.inf)


@pytest.mark.parametrize(
    ("needed", "level"),
    [((), 0), ((0, 0), 0), ((1,), 16), ((16, 0), 16), ((1, 40), 128), ((104,), 128), ((129,), 256), ((257,), 0),
     ((257, 1), 16)],
)  # fmt: skip
def test_levels(needed: tuple[int, ...], level: int) -> None:
    assert level_of(needed) == level


def test_whole_runs() -> None:
    assert list(whole_runs([True, True, False, True])) == [(0, 2), (3, 4)]
    assert list(whole_runs([False])) == []
    assert list(whole_runs([])) == []


def found(ids: list[int], values: list[float], total: float = 0.0) -> FloatArray:
    return np.array([*ids, *values, total], np.float32)


def test_the_least_of_those_found_may_have_equals() -> None:
    given = sparse_row(found([5, 3, 9], [1.0, 3.0, 2.0]), 2, V)
    assert given is not None
    assert dict(zip(given[0].tolist(), given[1].tolist(), strict=True)) == {3: 3.0, 9: 2.0}
    assert sparse_row(found([5, 3, 9], [1.0, 3.0, 2.0]), 3, V) is None
    assert sparse_row(found([5, 3, 9], [3.0, 3.0, 3.0]), 1, V) is None


def test_nothing_is_behind_minus_infinity() -> None:
    given = sparse_row(found([5, 3, 9], [-np.inf, 3.0, -np.inf], -np.inf), 2, V)
    assert given is not None
    assert given[0].tolist() == [3]


@pytest.mark.parametrize(
    "row",
    [found([5, 3], [2.0, 1.0], np.nan), found([5, 3], [np.inf, 1.0], np.inf), found([5, 3], [np.nan, 1.0], np.nan)],
)
def test_unsound_rows_are_left_to_the_sampler(row: FloatArray) -> None:
    assert sparse_row(row, 1, V) is None


def test_tokens_that_no_sampler_looks_at_do_not_count() -> None:
    assert sparse_row(found([5, 900, 9], [1.0, 3.0, 2.0]), 2, 900) is None
    assert sparse_row(found([5, 900, 9], [1.0, 3.0, 2.0]), 1, 900) is not None


@contextmanager
def computed(logits: FloatArray, k: int) -> Iterator[tuple[Context, Tensor, Tensor]]:
    """(context, logits, what `best_rows` makes of them)"""
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend, Context(backend) as ctx:
        source = ctx.input("f32", logits.shape[::-1])
        copy = source + ctx.zeros("f32", (1,))
        best = best_rows(copy, k)
        ctx.forward(copy, best)
        ctx.alloc()
        source.set(logits)
        ctx.compute()
        yield ctx, copy, best


def some_rows(n: int, seed: int = 0) -> FloatArray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, V)).astype(np.float32) * 3


def hard_rows() -> FloatArray:
    """Ties all over, ties at the top, a single finite value, -infinity, all equal; NaN and +infinity at last."""
    rows = some_rows(7)
    rows[1] = np.round(rows[1])
    rows[2, 100:140] = rows[2].max() + 1
    rows[3] = -INF
    rows[3, 77] = -2.0
    rows[4, ::2] = -INF
    rows[5] = 1.0
    rows[6, 500], rows[6, 501] = np.nan, INF
    return rows


def test_what_the_graph_finds() -> None:
    rows = some_rows(3)
    with computed(rows, 16) as (_, _, best):
        out = best.numpy()
    assert out.shape == (3, 33)
    for row, line in zip(rows, out, strict=True):
        assert sorted(line[:16].astype(int)) == sorted(np.argsort(-row)[:16])
        np.testing.assert_array_equal(row[line[:16].astype(int)], line[16:32])
        np.testing.assert_allclose(line[32], row.sum(dtype=np.float64), rtol=1e-3, atol=1e-2)


PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "default": {},
    "penalties": {"repeat_penalty": 1.3, "presence_penalty": 0.2},
    "all": {"top_k": 0},
}


@pytest.mark.parametrize("name", PARAMS)
def test_tokens_are_those_of_whole_rows(name: str) -> None:
    rows = hard_rows()
    for seed in range(5):
        samplers = [Sampler(SamplingParams(seed=seed, **PARAMS[name]), V) for _ in range(6)]
        for sampler in samplers:
            sampler.accept_many(range(90, 150))
        needed = [sampler.best_needed for sampler in samplers]
        reader = BestLogits(V)
        with computed(rows[:6], level_of(needed) or 16) as parts, reader.read(*parts, needed) as read:
            tokens = [sampler.sample(row) for sampler, row in zip(samplers, read, strict=True)]
        for sampler, row, token in zip(samplers, rows[:6], tokens, strict=True):
            twin = Sampler(SamplingParams(seed=seed, **PARAMS[name]), V)
            twin.accept_many(range(90, 150))
            assert (twin.sample(row), twin.draws) == (token, sampler.draws)
        assert reader.counts.reduced + reader.counts.whole == 6
        assert (reader.counts.reduced > 0) == (needed[0] > 0)


def test_rows_that_need_it_are_whole_and_nothing_is_left_of_them() -> None:
    rows = hard_rows()
    reader = BestLogits(V)
    for _ in range(2):
        with computed(rows, 16) as parts, reader.read(*parts, [1, 1, 1, 1, 1, 1, 1]) as read:
            for whole in (2, 5, 6):
                np.testing.assert_array_equal(read[whole], rows[whole])
            for reduced in (0, 1, 3, 4):
                kept = read[reduced] > -INF
                assert 0 < kept.sum() <= 16
                assert read[reduced].argmax() == rows[reduced].argmax()
                np.testing.assert_array_equal(read[reduced][kept], rows[reduced][kept])
        with computed(rows[:2], 16) as parts, reader.read(*parts, [0, 1]) as read:
            np.testing.assert_array_equal(read[0], rows[0])
            assert (read[1] > -INF).sum() <= 16
    assert (reader.counts.whole, reader.counts.reduced) == (8, 10)


def test_few_devices_and_vocabularies_are_worth_it() -> None:
    cpu = next(device for device in devices() if device.kind == "cpu")
    other = replace(cpu, kind="gpu")
    assert make_best_logits(cpu, LEAST_VOCABULARY, V) is None
    assert make_best_logits(other, LEAST_VOCABULARY - 1, V) is None
    assert make_best_logits(other, LEAST_VOCABULARY, V) is not None
