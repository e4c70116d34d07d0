"""What interrupts, loggers, forks, long lists and long prompts must not do to an engine."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ClosedError, EngineBusyError
from ollama_engine.runner.observe.monitor import TRACE
from ollama_engine.runner.schedule.pace import PROMPT_ROWS
from tests.support.engine_thread import held, idle
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import N_VOCAB, greedy
from tests.support.waiting import eventually, join, status_of

PATIENCE = 30
ENDLESS = greedy(1_000_000)
SHIFT: Any = {"on_overflow": "shift"}
"""With ENDLESS, an answer that does not end by itself."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1, n_ctx=4096).path


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with Engine(path, num_ctx=2048, parallel=2, max_queue=4, threads=1) as made:
        yield made


def test_a_signal_handler_may_ask_for_metrics(engine: Engine) -> None:
    def handle(*_: object) -> None:
        assert engine.metrics.queued >= 0
        engine.trace()
        if time.monotonic() < end:  # again when it has answered: on a slow machine it would be interrupted for ever
            signal.setitimer(signal.ITIMER_REAL, 0.0007)

    before, end = signal.signal(signal.SIGALRM, handle), time.monotonic() + 0.5
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while time.monotonic() < end:
            engine.metrics.requests  # noqa: B018
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("bad", ["raises", "asks the engine"])
def test_a_log_handler_that_misbehaves_ends_nothing(engine: Engine, bad: str) -> None:
    class Handler(logging.Handler):
        seen = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.seen += 1
            if bad == "raises":
                raise ZeroDivisionError
            engine.generate([1], greedy(1))

    logger, handler = logging.getLogger("ollama_engine.trace"), Handler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(TRACE)
    try:
        assert len(engine.generate([1, 2], greedy(5)).tokens) == 5
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    assert handler.seen
    assert len(engine.generate([1, 2], greedy(5)).tokens) == 5


def test_tokens_without_a_text_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = np.random.default_rng(0).standard_normal((N_VOCAB + 32, 64)).astype(np.float32)
    tensors = {"token_embd.weight": table, "output.weight": table}
    path = write_tiny_llama(tmp_path / "padded.gguf", n_layer=1, tensors=tensors).path
    with caplog.at_level(TRACE, logger="ollama_engine.trace"), Engine(path, num_ctx=64, threads=1) as engine:
        assert engine.logits([N_VOCAB + 3, 5]).shape == (2, N_VOCAB + 32)
    assert "323='?'" in caplog.text


def test_low_priority_is_served_beside_a_flood_of_high(engine: Engine) -> None:
    stop = threading.Event()

    def flood(number: int) -> None:
        while not stop.is_set():
            try:
                engine.generate([number], greedy(2), priority=1)
            except EngineBusyError:
                time.sleep(0.001)

    threads = [threading.Thread(target=flood, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert engine.submit([200], greedy(2)).result(PATIENCE).finish_reason == "length"
    finally:
        stop.set()
        join(*threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_request(engine: Engine) -> None:
    request = engine.submit([1], ENDLESS, **SHIFT)
    child = os.fork()
    if child == 0:
        try:
            request.result()
        except ClosedError:
            os._exit(0)
        os._exit(1)
    assert status_of(child) == 0
    assert next(request).tokens
    request.cancel()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_nothing_of_its_parents_engine(engine: Engine) -> None:
    """Whatever thread of its parent, the engine's say, held a lock then: there it stays taken for ever."""
    asked: list[Callable[[], object]] = [
        lambda: engine.metrics, lambda: engine.memory, engine.slots, engine.steps, engine.trace,
        lambda: engine.cancel(0), lambda: engine.set_priority(0, 1),
    ]  # fmt: skip
    taken, go = threading.Event(), threading.Event()

    def hold() -> None:
        with engine._monitor.metrics._lock, engine._monitor.trace._lock:
            taken.set()
            go.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(PATIENCE)
    child = os.fork()
    if child == 0:
        for ask in asked:
            try:
                ask()
            except ClosedError as error:
                if "this Engine was opened before the process forked" in str(error):
                    continue
            os._exit(1)
        os._exit(0)
    go.set()
    join(holder)
    assert status_of(child) == 0
    for ask in asked:
        ask()


def test_a_running_list_counts_as_one_in_the_queue(engine: Engine) -> None:
    prompts, go = [[i] for i in range(60)], threading.Event()

    def wait(ids: Any, logits: Any) -> None:
        go.wait(PATIENCE)

    with_list = threading.Thread(target=lambda: engine.generate(prompts, greedy(6), logits_processors=[wait]))
    with_list.start()
    eventually(engine.slots)
    late = engine.submit([100], greedy(1))
    go.set()
    join(with_list)
    assert late.result(PATIENCE).tokens


def test_sessions_that_close_take_no_place_in_the_queue(path: str) -> None:
    with Engine(path, num_ctx=64, parallel=1, max_queue=0, threads=1) as engine:
        for _ in range(50):
            with engine.session() as session:
                session.append([1, 2, 3])


def test_a_long_prompt_leaves_others_their_pace(engine: Engine) -> None:
    """Beside an answer under way, no step has more than PROMPT_ROWS rows for one waiting prompt."""
    answer = engine.submit([1], ENDLESS, **SHIFT)
    next(answer)
    engine.generate([7] * 1500, greedy(1))
    answer.cancel()
    idle(engine)
    steps = [step for step in engine._monitor.trace.steps() if step.completion_tokens and step.prompt_tokens > 1]
    assert steps
    assert max(step.prompt_tokens for step in steps if step.sequences > 1) == PROMPT_ROWS - 1


def test_many_waiting_prompts_make_a_longer_step(path: str) -> None:
    with Engine(path, num_ctx=2048, parallel=4, threads=1) as engine:
        answer = engine.submit([1], ENDLESS, **SHIFT)
        next(answer)
        with held(engine):
            waiting = [engine.submit([5 + i] * 1500, greedy(1)) for i in range(3)]
        for request in waiting:
            request.result(PATIENCE)
        answer.cancel()
        idle(engine)
        steps = [step for step in engine._monitor.trace.steps() if step.completion_tokens]
    assert max(step.prompt_tokens for step in steps) == 3 * PROMPT_ROWS - 1


def test_prompts_of_several_callers_are_read_one_after_the_other(path: str) -> None:
    """Four of 100 tokens beside an answer, 31 tokens a step: read in turn, all four would end in step 13."""
    with Engine(path, num_ctx=512, parallel=5, threads=1, batch_size=32) as engine:
        with held(engine):
            answer = engine.submit([1], greedy(400))
            waiting = [engine.submit([5 + i] * 100, greedy(1)) for i in range(4)]
        for request in waiting:
            request.result(PATIENCE)
        answer.cancel()
        steps = [step for step in engine._monitor.trace.steps() if step.prompt_tokens > 1]
    ends = [number for number, step in enumerate(steps, 1) for _ in range(1, step.completion_tokens)]
    assert ends == [4, 7, 11, 13]


def test_logprobs_that_were_asked_for_are_there_without_tokens(engine: Engine) -> None:
    params = SamplingParams(max_tokens=0, logprobs=2)
    assert engine.generate([5], params).logprobs == ()


def test_a_stream_that_has_ended_has_no_completion(engine: Engine) -> None:
    async def work() -> None:
        stream = engine.astream([1], greedy(3))
        assert len([chunk async for chunk in stream]) == 3
        with pytest.raises(ClosedError, match="has ended"):
            await stream.completion()

    asyncio.run(work())


@pytest.mark.parametrize("timeout", [float("inf"), 1e12])
def test_waiting_for_ever_is_a_timeout_too(engine: Engine, timeout: float) -> None:
    request = engine.submit([1], greedy(3))
    assert len(request.result(timeout).tokens) == 3
    assert request.done


def test_a_request_is_done_before_anybody_takes_its_chunks(engine: Engine) -> None:
    request: Any = engine.submit([1], greedy(3))
    eventually(lambda: request.done)
    assert len(request.result(0).tokens) == 3
