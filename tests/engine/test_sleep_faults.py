"""Engine.sleep where other things happen at the same time, or fail: no request ever sees memory that was dropped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ClosedError, ComputeError, DeadlineError, NoMemoryError
from ollama_engine.ml.weights import kept_pages
from ollama_engine.runner.core import engine_thread
from ollama_engine.runner.prefix_store.prefix_store import PrefixStore
from tests.engine.test_steering_requests import ENDLESS, FOREVER
from tests.support.engine_thread import held, idle
from tests.support.waiting import WAIT_SECONDS, ended, eventually, interruptible, join

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pages are given back on Linux only")

TEXT = "Once there was a little fox who lived in a big wood."
PARAMS = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=256, threads=1, parallel=4, verify=True) as made:
        yield made


def together(engine: Engine, *calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that come to the core in one round, in this order."""
    results: dict[int, Any] = {}

    def call(i: int) -> None:
        results[i] = calls[i]()

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(calls))]
    with held(engine):
        inbox = engine._engine_thread._inbox
        for thread in threads:
            expected = inbox.qsize() + 1
            thread.start()
            eventually(lambda expected=expected: inbox.qsize() == expected)  # type: ignore[misc]
    join(*threads)
    return [results[i] for i in range(len(calls))]


def test_other_systems_are_told_so(engine: Engine) -> None:
    with patch.object(sys, "platform", "darwin"), pytest.raises(OSError, match=r"only Linux can .* close it instead$"):
        engine.sleep()
    assert not engine.is_sleeping


def test_what_comes_in_the_same_round_as_a_sleep_reads_and_writes_memory(engine: Engine, tmp_path: Path) -> None:
    awake, path = tmp_path / "awake", tmp_path / "asleep"
    with engine.session() as session:
        session.append(TEXT)
        session.generate(params=PARAMS)
        session.save(awake)
        together(engine, engine.sleep, lambda: session.save(path))
        assert path.read_bytes() == awake.read_bytes()
        expected = session.generate(params=PARAMS).tokens
    engine.wake_up()
    _, loaded = together(engine, engine.sleep, lambda: engine.load_session(awake))
    with loaded:
        assert loaded.generate(params=PARAMS).tokens == expected


@pytest.mark.parametrize("error", [OSError(22, "Invalid argument"), ComputeError("busy")])
@pytest.mark.parametrize("short", [False, True])
def test_memory_that_was_given_back_in_part_is_taken_again(engine: Engine, error: Exception, short: bool) -> None:
    drop = kept_pages.KeptPages.drop

    def drop_and_fail(self: kept_pages.KeptPages) -> None:
        drop(self)
        raise error

    with engine.session() as session:
        session.append(TEXT)
        expected = session.generate(params=PARAMS).tokens
        session.rewind(len(expected))
        free = 1000 if short else 1 << 40
        with patch.object(kept_pages, "available_bytes", lambda: free):
            with patch.object(kept_pages.KeptPages, "drop", drop_and_fail), pytest.raises(type(error)) as raised:
                engine.sleep()
            assert raised.value is error
            if short:
                with pytest.raises(NoMemoryError):
                    session.generate(params=PARAMS)
        assert engine.is_sleeping == short
        assert session.generate(params=PARAMS).tokens == expected


@pytest.mark.parametrize("left", [0, -1])
def test_a_file_that_has_lost_something_closes_the_engine(engine: Engine, left: int) -> None:
    engine.generate(TEXT, PARAMS)
    engine.sleep()
    assert engine._memory._file is not None
    number = engine._memory._file.fileno()
    os.ftruncate(number, left % os.fstat(number).st_size)
    with pytest.raises(ClosedError, match="bytes instead of"):
        engine.generate(TEXT, PARAMS)
    assert engine.closed


def test_an_interrupted_sleep_is_taken_back(engine: Engine) -> None:
    # Without drafts: with them the grammar comes to the most states that it may have within seconds.
    with engine.stream("One day", ENDLESS, format=FOREVER, on_overflow="shift", draft="off") as endless:
        next(iter(endless))
        calls, main = engine._engine_thread._sleeper._calls, threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            with suppress(BaseException):
                eventually(lambda: bool(calls))
            signal.pthread_kill(main, signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with interruptible(), pytest.raises(KeyboardInterrupt):
            engine.sleep()
        join(interrupting)
    idle(engine)
    eventually(lambda: not calls)
    assert not engine.is_sleeping


def test_a_sleep_that_waits_costs_nothing_and_names_what_it_waits_for(tmp_path: Path) -> None:
    go, looked = threading.Event(), threading.Event()
    missing = PrefixStore._missing

    def stuck(self: PrefixStore, keys: Any, images: Any) -> Any:
        looked.set()
        assert go.wait(2 * WAIT_SECONDS)
        return missing(self, keys, images)

    with (
        patch.object(PrefixStore, "_missing", stuck),
        Engine(demo.path(), num_ctx=1024, threads=1, prefix_store=tmp_path) as engine,
    ):
        engine.generate(list(range(20, 620)), PARAMS)
        assert looked.wait(WAIT_SECONDS)
        idle(engine)
        steps = engine._core._steps
        with (
            patch.object(engine._core, "step", side_effect=AssertionError("nothing to do")),
            patch.object(engine_thread, "FLUSH_SECONDS", 0.1),
            pytest.raises(DeadlineError, match="prefixes were still to be stored"),
        ):
            engine.sleep()
        assert (engine._core._steps, engine.is_sleeping, engine.closed) == (steps, False, False)
        go.set()
        engine.sleep()
        assert engine.is_sleeping


def test_waking_it_up_takes_no_sleep_back_that_waits(engine: Engine) -> None:
    raised: list[BaseException | None] = []
    with engine.stream("One day", ENDLESS, format=FOREVER, on_overflow="shift") as endless:
        next(iter(endless))
        sleeper = threading.Thread(target=lambda: raised.append(ended(engine.sleep)))
        sleeper.start()
        eventually(lambda: bool(engine._engine_thread._sleeper._calls))
        engine.wake_up()
    join(sleeper)
    assert raised == [None]
    assert engine.is_sleeping
