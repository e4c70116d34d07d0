"""Interrupts in calls for embeddings: each ends its call, gives its place back, and keeps nobody else waiting."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.errors import ClosedError
from tests.models import encoders
from tests.robustness.test_interrupts import (
    PATIENCE,
    interrupted_after,
    interrupted_at,
    no_callbacks_of_others,
    wait_until_idle,
)

__all__ = ["no_callbacks_of_others"]

TEXTS = ["a small thing", "it", "what is it"] * 3
SAME = 1e-4
STORM = 120


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoders.converted(encoders.case("bert-ranker"), Path(tmp_path_factory.mktemp("bert")))


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    with Engine(path, threads=1, batch_size=16, parallel=1, max_queue=1) as made:
        expected = made.embed(TEXTS, pooling="mean")
        yield made
        np.testing.assert_allclose(made.embed(TEXTS, pooling="mean"), expected, atol=SAME)
        wait_until_idle(made)


def calls(engine: Engine) -> dict[str, Callable[[], object]]:
    return {
        "embed": lambda: engine.embed(TEXTS, pooling="mean"),
        "one": lambda: engine.embed(TEXTS[0], pooling="mean", timeout=PATIENCE),
        "embeddings": lambda: engine.embeddings(TEXTS, pooling="none", priority=1),
        "rank": lambda: engine.rank(TEXTS[0], TEXTS),
    }


def unless_closed(call: Callable[[], object]) -> Callable[[], None]:
    def closed_or_not() -> None:
        with contextlib.suppress(ClosedError):
            call()

    return closed_or_not


@pytest.mark.parametrize("way", ["embed", "one", "embeddings", "rank"])
def test_an_interrupt_anywhere_gives_the_place_back(engine: Engine, way: str) -> None:
    """With room for two calls, a place that stayed taken would have the third one refused."""
    call = calls(engine)[way]
    call()  # made once, and then there: what a first call makes
    for point in itertools.count():
        error = interrupted_at(call, point)
        assert not engine._engine_thread._is_full()
        if error is None:
            break
        del error
    assert point > 20


def test_an_interrupted_first_call_leaves_a_desk_that_works(path: Path) -> None:
    for point in range(0, 120, 7):
        with Engine(path, threads=1) as engine:
            interrupted_at(calls(engine)["embed"], point)
            assert engine.embed(TEXTS, pooling="mean").shape == (len(TEXTS), 64)


def test_an_interrupt_as_the_engine_closes_loses_nobody(path: Path) -> None:
    """Calls of other threads end, whoever is interrupted while the engine goes away."""
    for point in range(0, 90, 9):
        with ThreadPoolExecutor(2) as pool:
            engine = Engine(path, threads=1)
            others = [pool.submit(engine.embed, [[5, 6, 7]] * 3_000, pooling="mean") for _ in range(2)]
            engine._engine_thread.close(wait=False)
            interrupted_at(unless_closed(calls(engine)["embed"]), point)
            for other in others:
                other.exception(PATIENCE)
            engine.close()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
def test_a_storm_of_interrupts(engine: Engine) -> None:
    dice, hits = random.Random(7), 0
    ways = list(calls(engine).values())
    for _ in range(STORM):
        delay = dice.choice([1e-5, 1e-4, 1e-3, 4e-3]) * dice.uniform(0.02, 1)
        hits += interrupted_after(dice.choice(ways), delay) is not None
    assert hits > STORM / 10
    wait_until_idle(engine)
