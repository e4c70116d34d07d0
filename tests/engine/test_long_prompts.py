"""Long prompts: the event loop goes on while they are read, and timeout and cancelling cover that time."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ClosedError, ContextOverflowError, DeadlineError, EngineError, TokenizerError
from ollama_engine.runner.request.preparing import Preparing
from tests.support.engine_thread import idle
from tests.support.waiting import eventually

ANSWER = SamplingParams(max_tokens=1, temperature=0)
WORDS = "once upon a time " * 60_000
LINES = "." + "\n" * 3_000_000 + "."
CUT: dict[str, Any] = {"on_overflow": "truncate"}
Call = Callable[[Engine, str], Awaitable[Any]]


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def chunks(engine: Engine, text: str, **options: Any) -> list[Any]:
    return [chunk async for chunk in engine.astream(text, ANSWER, **CUT, **options)]


async def append(engine: Engine, text: str, **options: Any) -> None:
    with engine.session() as session:
        await session.aappend(text, **CUT, **options)


CALLS: dict[str, Callable[..., Awaitable[Any]]] = {
    "agenerate": lambda engine, text, **options: engine.agenerate(text, ANSWER, **CUT, **options),
    "a list": lambda engine, text, **options: engine.agenerate([text, "x"], ANSWER, **CUT, **options),
    "astream": chunks,
    "achat": lambda engine, text, **options: engine.achat(messages(text), ANSWER, **CUT, **options),
    "aembed": lambda engine, text, **options: engine.aembed(text, **CUT, **options),
    "aappend": append,
    "ascore": lambda engine, text, **options: engine.ascore(text, " x", **options),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=256, threads=1) as made:
        made._open().tokenizer.longest_token = None  # so that all of a text is read, however little of it has room
        made.chat(messages("x"), ANSWER)
        made.embed("x")
        made.score("x", " y")
        yield made


async def longest_wait(work: Awaitable[Any]) -> tuple[float, float]:
    """Seconds that the work took, and the longest time in which the event loop could do nothing else."""
    task, longest = asyncio.ensure_future(work), 0.0
    begin = last = time.perf_counter()
    while not task.done():
        await asyncio.sleep(0.001)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    with contextlib.suppress(ContextOverflowError):  # from ascore, which cuts no prompt
        task.result()
    return time.perf_counter() - begin, longest


@pytest.mark.timing("how long the system lets this thread rest while another one reads")
@pytest.mark.parametrize("name", CALLS)
def test_the_event_loop_goes_on(engine: Engine, name: str) -> None:
    # A busy machine may keep this thread from running for a while, but hardly five times.
    found = (asyncio.run(longest_wait(CALLS[name](engine, WORDS))) for _ in range(5))
    assert any(longest < 0.7 * took for took, longest in found)


@pytest.mark.parametrize("name", CALLS)
def test_timeout_covers_the_reading(engine: Engine, name: str) -> None:
    with pytest.raises(DeadlineError, match=r"timeout of 0\.02 s"):
        asyncio.run(CALLS[name](engine, LINES, timeout=0.02))


@pytest.mark.parametrize("read", ["generate", "submit", "chat", "append", "score", "a list"])
def test_timeout_covers_the_reading_in_a_thread(engine: Engine, read: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "generate": lambda: engine.generate(LINES, ANSWER, timeout=0.02, **CUT),
        "submit": lambda: engine.submit(LINES, ANSWER, timeout=0.02, **CUT).result(),
        "chat": lambda: engine.chat(messages(LINES), ANSWER, timeout=0.02, **CUT),
        "append": lambda: engine.session().append(LINES, timeout=0.02, **CUT),
        "score": lambda: engine.score(LINES, " x", timeout=0.02),
        "a list": lambda: engine.generate(["x", LINES], ANSWER, timeout=0.02, **CUT),
    }
    with pytest.raises(DeadlineError, match=r"timeout of 0\.02 s"):
        calls[read]()
    assert not engine.slots()


@pytest.mark.timing("a second, in which this thread has to run twice")
@pytest.mark.parametrize("name", CALLS)
def test_a_cancelled_task_stops_waiting(engine: Engine, name: str) -> None:
    async def cancel() -> float:
        task = asyncio.ensure_future(CALLS[name](engine, LINES))
        await asyncio.sleep(0.03)
        begin = time.perf_counter()
        task.cancel()
        with pytest.raises((asyncio.CancelledError, EngineError)):
            await task
        return time.perf_counter() - begin

    assert min(asyncio.run(cancel()) for _ in range(3)) < 1
    idle(engine)


@pytest.mark.parametrize("way", ["astream", "achat_stream"])
def test_a_closed_stream_ends_its_reading(engine: Engine, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[BaseException] = []
    check, reads, closed = Preparing.check, threading.Event(), threading.Event()

    def noted(self: Preparing) -> None:
        reads.set()
        try:
            assert closed.wait(30)
            check(self)
        except ClosedError as error:
            ended.append(error)
            raise

    monkeypatch.setattr(Preparing, "check", noted)

    async def close() -> None:
        prompt = LINES if way == "astream" else messages(LINES)
        stream = getattr(engine, way)(prompt, ANSWER, **CUT)
        task = asyncio.ensure_future(anext(stream))
        await asyncio.to_thread(reads.wait, 30)
        await stream.aclose()
        closed.set()
        with contextlib.suppress(EngineError, StopAsyncIteration):
            await task

    asyncio.run(close())
    eventually(lambda: ended)


def test_what_is_wrong_with_a_long_prompt_comes_with_the_first_chunk(engine: Engine) -> None:
    async def read() -> None:
        stream = engine.astream("once " * 10_000)
        with pytest.raises(ContextOverflowError):
            await anext(stream)
        chat = engine.achat_stream(messages("once " * 10_000))
        with pytest.raises(ContextOverflowError):
            await anext(chat)
        with pytest.raises(TokenizerError):
            engine.astream("\ud800")

    asyncio.run(read())


def test_usage_counts_the_reading(engine: Engine) -> None:
    short = min((engine.generate("once", ANSWER).usage for _ in range(5)), key=lambda usage: usage.prepare_seconds)
    long = engine.generate(WORDS, ANSWER, **CUT).usage
    chat = engine.chat(messages(WORDS), ANSWER, **CUT).usage
    assert 0 < short.prepare_seconds < long.prepare_seconds
    assert short.prepare_seconds < chat.prepare_seconds
    assert min(usage.queue_seconds for usage in (short, long, chat)) >= 0
    assert long.prepare_seconds == round(long.prepare_seconds, 6)


def test_a_short_prompt_needs_no_thread(engine: Engine) -> None:
    async def ask() -> int:
        await engine.agenerate("once", ANSWER)
        await engine.achat(messages("once"), ANSWER)
        await engine.ascore("once", " upon")
        return asyncio.get_running_loop()._default_executor is None  # type: ignore[attr-defined]

    assert asyncio.run(ask())
