"""What callers and machines do wrong while others are served: those get their own answer, and no cell is lost."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from ollama_engine import Completion, Engine, SamplingParams
from ollama_engine.errors import ClosedError, ComputeError, EngineBusyError, SamplingError
from ollama_engine.runner.core import steered_rows
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.request.channel import Event, RequestChannel
from ollama_engine.runner.request.request import Request
from ollama_engine.runner.schedule.sequence import Generation
from tests.support.engine_thread import idle
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import NO_END
from tests.support.waiting import eventually

PATIENCE = 30
"""Seconds after which something is taken to hang."""
NUM_CTX = 2048
LONG = SamplingParams(temperature=0, max_tokens=None, logit_bias=NO_END)
SHIFT: Any = {"on_overflow": "shift"}
"""With LONG, an answer that never ends by itself."""
SHORT = SamplingParams(temperature=0, max_tokens=12, logit_bias=NO_END)
PROMPTS = [[5, 77, 200, 31, 8 + i] for i in range(12)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1, n_ctx=NUM_CTX).path


@pytest.fixture(scope="module")
def alone(path: str) -> list[tuple[int, ...]]:
    with open_engine(path, parallel=1) as engine:
        return [engine.generate(prompt, SHORT, cache=False).tokens for prompt in PROMPTS]


def open_engine(path: str, **options: Any) -> Engine:
    fixed = {"num_ctx": NUM_CTX, "parallel": 4, "batch_size": 32, "threads": 1, "kv_cache_type": "f32", "verify": True}
    return Engine(path, **{**fixed, **options})


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with open_engine(path) as made:
        yield made
        check_nothing_left(made)


def check_nothing_left(engine: Engine) -> None:
    """All requests have ended; and when their histories go, all cells are free."""
    idle(engine)
    left: list[int] = []
    done = threading.Event()

    class Evict:
        def run(self, core: Any) -> None:
            while core.cache_manager.evict():
                pass
            core.check()
            left.append(core.cache.usage.used)
            done.set()

        def fail(self, error: BaseException) -> None:
            done.set()

    engine._engine_thread.do(Evict())
    assert done.wait(PATIENCE)
    assert left == [0]


def ask_all(engine: Engine) -> list[Request]:
    return [engine.submit(prompt, SHORT) for prompt in PROMPTS]


def check_all(requests: list[Request], alone: list[tuple[int, ...]]) -> None:
    assert [request.result(PATIENCE).tokens for request in requests] == alone


# -- consumers ---------------------------------------------------------------------------------------------------------


def test_a_consumer_that_never_reads(engine: Engine, alone: list[tuple[int, ...]]) -> None:
    silent = engine.submit([1, 2, 3], SamplingParams(max_tokens=800, logit_bias=NO_END))
    check_all(ask_all(engine), alone)
    assert len(silent.result(PATIENCE).tokens) == 800


def test_consumers_that_vanish(engine: Engine, alone: list[tuple[int, ...]]) -> None:
    for _ in range(6):
        stream = engine.stream([1, 2, 3], LONG)
        next(stream)
        del stream
        engine.submit([4, 5], SamplingParams(max_tokens=5))
    check_all(ask_all(engine), alone)


def test_five_hundred_submitters_at_once(path: str, alone: list[tuple[int, ...]]) -> None:
    ready = threading.Barrier(500)

    def ask(number: int) -> bool:
        ready.wait(PATIENCE)
        return engine.generate(PROMPTS[number % 12], SHORT).tokens == alone[number % 12]

    with open_engine(path, parallel=16, verify=False) as engine:
        with ThreadPoolExecutor(500) as pool:
            assert all(pool.map(ask, range(500), timeout=PATIENCE))
        assert engine.metrics.requests["length"] == 500
        check_nothing_left(engine)


def test_as_many_wait_as_max_queue_allows(path: str) -> None:
    with open_engine(path, parallel=2, max_queue=3) as engine:
        running = [engine.submit([1, i], LONG, **SHIFT) for i in range(2)]
        for request in running:
            next(request)
        waiting = [engine.submit([2, i], SHORT) for i in range(3)]
        with pytest.raises(EngineBusyError, match="max_queue is 3"):
            engine.submit([3], SHORT)
        with pytest.raises(EngineBusyError):
            engine.generate([[3], [4]], SHORT)
        assert engine.metrics.requests["rejected"] == 2
        for request in running:
            request.cancel()
        assert all(len(request.result(PATIENCE).tokens) == 12 for request in waiting)
        assert len(engine.generate([3], SHORT).tokens) == 12
        check_nothing_left(engine)


def test_without_a_queue_only_those_that_run_at_once_are_taken(path: str) -> None:
    with open_engine(path, parallel=1, max_queue=0) as engine:
        for _ in range(3):
            running = engine.submit([1], LONG, **SHIFT)
            next(running)
            with pytest.raises(EngineBusyError):
                engine.submit([2], SHORT)
            running.cancel()
            with pytest.raises(ClosedError):
                running.result(PATIENCE)


def test_a_list_that_is_refused_does_not_begin(path: str) -> None:
    with open_engine(path, parallel=1, max_queue=1) as engine:
        running, waiting = engine.submit([1], LONG, **SHIFT), engine.submit([2], LONG)
        next(running)
        eventually(lambda: len(engine.slots()) == 2)  # the engine takes the second one in between two steps
        with pytest.raises(EngineBusyError):
            engine.generate([[3], [4], [5]], SHORT)
        assert len(engine.slots()) == 2
        running.cancel()
        waiting.cancel()
        check_nothing_left(engine)
        assert [len(answer.tokens) for answer in engine.generate([[3], [4], [5]], SHORT)] == [12] * 3


def test_storms_of_cancellations(engine: Engine, alone: list[tuple[int, ...]]) -> None:
    dice = random.Random(7)
    asked = ask_all(engine)
    for _ in range(150):
        prompt = [dice.randrange(300) for _ in range(dice.choice([2, 40, 300]))]
        request = engine.submit(prompt, LONG, priority=dice.randrange(3), **SHIFT)
        if dice.random() < 0.3:
            next(request)
        request.cancel()
    check_all(asked, alone)
    check_nothing_left(engine)
    assert engine.metrics.requests["cancelled"] == 150


# -- one request's own faults ------------------------------------------------------------------------------------------


class BrokenPush:
    """An emitter that fails at the third token."""

    stopped = False

    def __init__(self) -> None:
        self.n = 0

    def push(self, token: int) -> str:
        self.n += 1
        if self.n == 3:
            raise ZeroDivisionError("emitter")
        return ""

    def flush(self) -> str:
        return ""


class BrokenMailbox:
    """One that fails at the third event, and ever after."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def put(self, event: Event) -> None:
        self.events.append(event)
        if len(self.events) >= 3:
            raise ZeroDivisionError("mailbox")


def tamper(engine: Engine, change: Callable[[Generation], None]) -> None:
    """Change the next generation before the loop sees it."""
    submit = engine._engine_thread.submit

    def changed(sequence: Any) -> None:
        del engine._engine_thread.submit  # type: ignore[method-assign]  # the instance's own, below
        change(sequence)
        submit(sequence)

    engine._engine_thread.submit = changed  # type: ignore[method-assign]


def test_an_exception_in_an_emitter(engine: Engine, alone: list[tuple[int, ...]]) -> None:
    asked = ask_all(engine)[:6]
    tamper(engine, lambda request: setattr(request, "emitter", BrokenPush()))
    broken = engine.submit([9, 9], LONG)
    with pytest.raises(ZeroDivisionError, match="emitter"):
        broken.result(PATIENCE)
    check_all([*asked, *ask_all(engine)[6:]], alone)


def test_an_exception_in_a_mailbox(engine: Engine, alone: list[tuple[int, ...]]) -> None:
    box = BrokenMailbox()
    tamper(engine, lambda request: setattr(request, "channel", RequestChannel(box)))
    engine.submit([9, 9], LONG)
    check_all(ask_all(engine), alone)
    check_nothing_left(engine)
    assert len(box.events) == 3
    assert engine.metrics.requests["cancelled"] == 1


def test_an_exception_in_a_sampler(
    engine: Engine, alone: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the samplers of a step raise together, each is asked alone then."""
    together, alone_ = steered_rows.sample_rows, steered_rows._sample_alone
    bad: list[Any] = []

    def fail_together(samplers: Any, *rest: Any) -> Any:
        if bad[0] in samplers:
            raise ZeroDivisionError("sampler")
        return together(samplers, *rest)

    def fail_alone(sampler: Any, *rest: Any) -> Any:
        return ZeroDivisionError("sampler") if sampler is bad[0] else alone_(sampler, *rest)

    monkeypatch.setattr(steered_rows, "sample_rows", fail_together)
    monkeypatch.setattr(steered_rows, "_sample_alone", fail_alone)
    tamper(engine, lambda request: bad.append(request.sampler))
    broken = engine.submit([9, 9], LONG)
    asked = ask_all(engine)
    with pytest.raises(ZeroDivisionError, match="sampler"):
        broken.result(PATIENCE)
    check_all(asked, alone)


def test_when_every_token_of_one_request_is_banned(engine: Engine, alone: list[tuple[int, ...]]) -> None:
    asked = ask_all(engine)
    banned = engine.submit([9], SamplingParams(logit_bias=dict.fromkeys(range(320), float("-inf"))))
    with pytest.raises(SamplingError, match="-inf"):
        banned.result(PATIENCE)
    check_all(asked, alone)


def test_what_a_cancelled_prompt_left_of_nan_harms_one_request_at_most(tmp_path: Any) -> None:
    """PrefixCache of requests that were given up stay; one that holds NaN must not spoil all that come after."""
    table = np.random.default_rng(1).standard_normal((320, 64)).astype(np.float32)
    table[9] = np.nan
    tensors = {"token_embd.weight": table, "output.weight": np.nan_to_num(table)}
    path = write_tiny_llama(tmp_path / "nan.gguf", n_ctx=NUM_CTX, tensors=tensors).path
    with open_engine(path, flash_attention=False) as engine:
        expected = engine.generate(PROMPTS[0], SHORT).tokens
        for _ in range(3):
            request = engine.submit([9] * 2000, SHORT)
            eventually(lambda: request.done or any(slot.computed_tokens for slot in engine.slots()))  # noqa: B023
            request.cancel()
            with pytest.raises((ClosedError, SamplingError)):
                request.result(PATIENCE)
        outcomes = []
        for _ in range(4):
            try:
                outcomes.append(engine.generate(PROMPTS[0], SHORT, cache=False).tokens == expected)
            except SamplingError:
                outcomes.append(False)
        assert outcomes[1:] == [True] * 3


@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("weight", ["attn_k", "attn_v"])
def test_keys_and_values_that_are_no_numbers_are_an_error(tmp_path: Any, weight: str, flash: Any) -> None:
    """And not nonsense: what is stored of them is not made finite."""
    bad = np.full((32, 64), np.nan, dtype=np.float32)
    path = write_tiny_llama(tmp_path / "nan.gguf", tensors={f"blk.0.{weight}.weight": bad}).path
    with open_engine(path, num_ctx=64, flash_attention=flash) as engine, pytest.raises(SamplingError):
        engine.generate(PROMPTS[0], SHORT)


def generate_endlessly(engine: Engine, prompts: list[list[int]]) -> object:
    return engine.generate(prompts, LONG, **SHIFT)


def agenerate_endlessly(engine: Engine, prompts: list[list[int]]) -> object:
    return asyncio.run(asyncio.wait_for(engine.agenerate(prompts, LONG, **SHIFT), PATIENCE))


@pytest.mark.parametrize("ask", [generate_endlessly, agenerate_endlessly])
def test_the_first_of_several_that_fails_ends_the_call(tmp_path: Any, ask: Callable[..., object]) -> None:
    """The others would never end; and where it stands in the list does not matter."""
    table = np.random.default_rng(1).standard_normal((320, 64)).astype(np.float32)
    table[9] = np.nan
    tensors = {"token_embd.weight": table, "output.weight": np.nan_to_num(table)}
    path = write_tiny_llama(tmp_path / "nan.gguf", n_ctx=64, tensors=tensors).path
    with open_engine(path, num_ctx=64) as engine:
        for prompts in ([[1], [2], [9]], [[9], [1], [2]]):
            with pytest.raises(SamplingError):
                ask(engine, prompts)
            check_nothing_left(engine)
        assert engine.metrics.requests["cancelled"] == 4


# -- steps that fail ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["_compute", "_finish"])
@pytest.mark.parametrize("at", [0, 1, 2, 5, 9])
def test_a_step_that_fails_ends_those_in_it_only(
    engine: Engine, alone: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch, part: str, at: int
) -> None:
    """Launching fails, or computing; the others are computed anew, and so is everybody after that."""
    original = getattr(Executor, part)
    calls = []

    def fail(self: Executor, *arguments: Any) -> Any:
        calls.append(part)
        if len(calls) == at + 1:
            if part == "_finish":
                original(self, *arguments)
            raise ComputeError("told to")
        return original(self, *arguments)

    engine.generate(PROMPTS[0], SHORT)
    monkeypatch.setattr(Executor, part, fail)
    requests = ask_all(engine)
    outcomes: list[Completion | BaseException] = []
    for request in requests:
        try:
            outcomes.append(request.result(PATIENCE))
        except ComputeError as error:
            outcomes.append(error)
    failed = [outcome for outcome in outcomes if isinstance(outcome, ComputeError)]
    assert 1 <= len(failed) <= 4
    for outcome, expected in zip(outcomes, alone, strict=True):
        assert isinstance(outcome, ComputeError) or outcome.tokens == expected
    check_all(ask_all(engine), alone)


def test_a_fault_of_the_engine_itself_is_told_to_everybody(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = open_engine(path)
    requests = [engine.submit(prompt, LONG, **SHIFT) for prompt in PROMPTS]
    next(requests[0])

    def fail() -> None:
        raise AssertionError("the books are wrong")

    monkeypatch.setattr(engine._core.queue, "admit", fail)
    monkeypatch.setattr(engine._core.cache_manager, "leave", fail)
    for request in requests:
        with pytest.raises(ClosedError, match="books are wrong") as caught:
            request.result(PATIENCE)
        assert isinstance(caught.value.__cause__, AssertionError)
    with pytest.raises(ClosedError, match="closed itself after a fault"):
        engine.generate([1])
    engine.close()
    assert "closes after a fault" in caplog.text


# -- closing and dropping ----------------------------------------------------------------------------------------------


def test_closing_under_load(path: str, alone: list[tuple[int, ...]]) -> None:
    engine = open_engine(path)

    def ask(number: int) -> bool:
        try:
            while True:
                assert engine.generate(PROMPTS[number], SHORT).tokens == alone[number]
        except ClosedError:
            return True

    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(ask, number) for number in range(12)]
        time.sleep(0.1)
        engine.close()
        assert all(future.result(PATIENCE) for future in asked)
    assert not engine._engine_thread._thread.is_alive()


def test_dropping_under_load(path: str) -> None:
    engine = open_engine(path)
    thread = engine._engine_thread._thread
    requests = [engine.submit(prompt, LONG) for prompt in PROMPTS]
    next(requests[0])
    del engine, requests
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()
