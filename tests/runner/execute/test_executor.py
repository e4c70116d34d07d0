"""The executor's own duties: limits, graph reuse, and that a failure leaves no trace. The numbers: tests/models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine.errors import ComputeError, ConfigError, ContextOverflowError
from ollama_engine.input import Batch
from ollama_engine.kvcache import MAX_SEQUENCES
from ollama_engine.runner.execute import kept_graphs
from ollama_engine.runner.execute.kept_graphs import MOST, MOST_BYTES
from ollama_engine.runner.load.loading import Loaded
from tests.models.variants import VARIANTS, loaded


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Loaded]:
    with loaded(VARIANTS[0].file(tmp_path), num_ctx=256, parallel=1, batch_size=64) as made:
        yield made


def batch(tokens: Any = (1,), positions: Any = None, sequences: Any = None, outputs: Any = (0,)) -> Batch:
    n = len(tokens)
    columns = (tokens, range(n) if positions is None else positions, sequences or [0] * n, outputs)
    return Batch(*(np.array(column, dtype=np.int32) for column in columns))


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (batch([]), "1 to 64 tokens, got 0"),
        (batch([1] * 65), "1 to 64 tokens, got 65"),
        (batch([1] * 40, outputs=range(33)), "at most 32 rows of logits, got 33"),
        (batch([320]), "tokens are 0 to 319, got 320 to 320"),
        (batch([-1, 5]), "tokens are 0 to 319, got -1 to 5"),
        (batch(positions=[-1]), "positions are 0"),
        (batch(sequences=[MAX_SEQUENCES]), f"sequences are 0 to {MAX_SEQUENCES - 1}"),
        (batch(sequences=[-1]), "sequences are 0 to"),
        (batch(outputs=[1]), "outputs are 0 to 0"),
    ],
)
def test_batches_that_are_refused(parts: Loaded, bad: Batch, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parts.executor.run(bad)
    assert parts.cache.usage.used == 0


def test_a_full_cache_is_refused_with_nothing_changed(parts: Loaded) -> None:
    for begin in range(0, 256, 64):
        parts.executor.run(Batch.of([1] * 64, begin))
    with pytest.raises(ContextOverflowError, match="1 tokens do not fit: 0 of 256"):
        parts.executor.run(Batch.of([1], 256))
    assert parts.cache.usage.used == 256
    parts.cache.remove(0, 255)
    parts.executor.run(Batch.of([1], 255))


@pytest.mark.parametrize("step", ["build", "write"])
def test_a_failed_step_leaves_the_sequence_as_it_was(parts: Loaded, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    prompt = list(range(10))
    expected = parts.executor.run(Batch.of(prompt, 0)).copy()
    parts.cache.remove(0)
    parts.executor.run(Batch.of(prompt[:6], 0))

    def fail(*_: object) -> None:
        raise ComputeError("told to")

    with monkeypatch.context() as patch:
        if step == "build":
            patch.setattr(parts.cache, "build_inputs", fail)
        else:
            build = parts.cache.build_inputs
            patch.setattr(parts.cache, "build_inputs", lambda ctx: build(ctx)._replace(write=fail))
        for _ in range(2):
            with pytest.raises(ComputeError, match="told to"):
                parts.executor.run(Batch.of(prompt[6:], 6))
            assert parts.cache.cells.of(0)[1].tolist() == list(range(6))
            parts.cache.check()
    np.testing.assert_allclose(parts.executor.run(Batch.of(prompt[6:], 6)), expected, atol=1e-4)


def test_graphs_are_reused_while_the_shape_holds(parts: Loaded) -> None:
    parts.executor.run(Batch.of([1] * 20, 0))
    for position in range(20, 30):
        parts.executor.run(Batch.of([2], position))
    counts = parts.executor.counts
    assert (counts.built, counts.reused) == (2, 9)
    parts.executor.run(Batch.of([1] * 20, 30))
    assert (counts.built, counts.reused) == (2, 10), "that of the prompt was kept"
    parts.executor.run(Batch.of([1] * 20, 50, outputs=[3, 4]))
    assert (counts.built, counts.reused) == (3, 10)


def test_graphs_that_come_in_turn_compute_what_new_ones_do(parts: Loaded) -> None:
    """Their results lie in the same memory, which the largest of them has replaced meanwhile."""
    ids, executor = list(range(1, 240)), parts.executor
    for sizes in ((1, 3, 2, 5, 1, 2, 3), (40, 1, 3, 2, 64, 5, 1)):
        rows, at = [], 0
        for n in sizes:
            rows.append(executor.run(Batch.of(ids[at : at + n], at)))
            at += n
        parts.cache.remove(0)
        at = 0
        for n, row in zip(sizes, rows, strict=True):
            executor._graphs.close()
            expected = executor.run(Batch.of(ids[at : at + n], at))
            np.testing.assert_array_equal(row, expected)
            at += n
        parts.cache.remove(0)


def test_graphs_that_are_kept_are_few(parts: Loaded) -> None:
    for n in range(1, 2 * MOST):
        parts.executor.run(Batch.of([1] * n, 0))
        parts.cache.remove(0)
    kept, sizes = parts.executor._graphs, (parts.executor.batch_size, 1)
    assert len(kept) == MOST
    largest = max(kept_graphs.bytes_of(ctx) for n in sizes for ctx in parts.executor._worst_graphs(n))
    assert parts.executor.kept_bytes == min(MOST_BYTES, MOST * largest), "of the largest, not of the last"
    assert 0 < kept.nbytes <= parts.executor.kept_bytes <= MOST_BYTES
    with patch.object(kept_graphs, "MOST_BYTES", kept.nbytes // 2):
        parts.executor.run(Batch.of([1] * (2 * MOST), 0))
        assert MOST // 3 < len(kept) <= MOST // 2


def test_prompts_take_no_place_of_answers_graphs(parts: Loaded) -> None:
    """Unless their length comes again, as that of a long prompt's parts does."""

    def run(*sizes: int) -> int:
        before = parts.executor.counts.built
        for n in sizes:
            parts.executor.run(Batch.of([1] * n, 0))
            parts.cache.remove(0)
        return parts.executor.counts.built - before

    answers, prompts = range(1, MOST - 2), range(MOST + 1, 4 * MOST)
    with patch.object(kept_graphs, "FEW", MOST):
        assert run(*answers, *prompts) == len(answers) + len(prompts)
        assert run(*answers) == 0
        assert run(prompts[-1], prompts[-1], *prompts[:MOST], prompts[-1]) == MOST
