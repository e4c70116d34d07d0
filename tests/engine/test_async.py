"""Asyncio: many tasks on one engine, and tasks, streams and event loops that go away at any moment."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from ollama_engine import Completion, Engine, SamplingParams
from ollama_engine.errors import (
    ClosedError,
    ConfigError,
    ContextOverflowError,
    DeadlineError,
    EngineBusyError,
    EngineError,
    TokenizerError,
)
from tests.support.engine_thread import idle
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import NO_END

PATIENCE = 30
"""Seconds after which something is taken to hang."""
LONG = SamplingParams(temperature=0, max_tokens=None, logit_bias=NO_END)
SHIFT: dict[str, Any] = {"on_overflow": "shift"}
"""With LONG, an answer that never ends by itself."""
SHORT = SamplingParams(temperature=0, max_tokens=10, logit_bias=NO_END)

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1, n_ctx=8192).path
    with Engine(path, num_ctx=8192, parallel=4, batch_size=64, threads=1, kv_cache_type="f32", max_queue=300) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_goes_on(engine: Engine) -> Iterator[None]:
    yield
    gc.collect()
    idle(engine)


def run(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    async def patiently() -> Result:
        return await asyncio.wait_for(work(), PATIENCE)

    return asyncio.run(patiently())


def test_many_tasks_get_the_answers_they_get_alone(engine: Engine) -> None:
    prompts = [[1 + i % 7, 50, 60 + i % 5] for i in range(100)]
    alone = {tuple(prompt): engine.generate(prompt, SHORT, cache=False).tokens for prompt in prompts}

    async def ask(i: int) -> bool:
        if i % 2:
            found = await engine.agenerate(prompts[i], SHORT)
            return found.tokens == alone[tuple(prompts[i])]
        tokens = [token async for chunk in engine.astream(prompts[i], SHORT) for token in chunk.tokens]
        return tuple(tokens) == alone[tuple(prompts[i])]

    async def work() -> list[bool]:
        return await asyncio.gather(*(ask(i) for i in range(100)))

    assert all(run(work))


def test_a_list_of_prompts(engine: Engine) -> None:
    async def work() -> list[Completion]:
        return await engine.agenerate([[1, 2], [3, 4], [5]], SHORT)

    assert [answer.tokens for answer in run(work)] == [
        answer.tokens for answer in engine.generate([[1, 2], [3, 4], [5]], SHORT)
    ]


def test_chunks_add_up_to_the_completion(engine: Engine) -> None:
    async def work() -> None:
        whole = await engine.agenerate([1, 2, 3], SHORT)
        chunks = [chunk async for chunk in engine.astream([1, 2, 3], SHORT)]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert [chunk.finish_reason for chunk in chunks] == [None] * 9 + ["length"]
        assert chunks[-1].usage is not None

    run(work)


def test_the_event_loop_goes_on_while_the_engine_computes(engine: Engine) -> None:
    async def work() -> int:
        turns = 0
        task = asyncio.create_task(engine.agenerate([7] * 3000, SHORT))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert run(work) > 10


@pytest.mark.parametrize("pause", [0, 0.001, 0.05])
@pytest.mark.parametrize("prompt", [[1, 2], [7] * 4000], ids=len)
def test_cancelling_a_task_cancels_its_request(engine: Engine, pause: float, prompt: list[int]) -> None:
    before = engine.metrics.requests["cancelled"]

    async def work() -> None:
        task = asyncio.create_task(engine.agenerate(prompt, LONG, **SHIFT))
        other = asyncio.create_task(engine.agenerate([5, 6], SHORT))
        await asyncio.sleep(pause)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len((await other).tokens) == 10

    run(work)
    idle(engine)
    # One that was cancelled before its first turn was never submitted.
    assert engine.metrics.requests["cancelled"] - before <= 1


def test_many_calls_that_fail_leave_no_trace(engine: Engine) -> None:
    """Of 700 at once four tenths come into the queue, fewer than may; the next call finds nothing there."""
    banned = SamplingParams(logit_bias=dict.fromkeys(range(320), float("-inf")))

    async def cancelled(pause: float) -> Completion:
        return await asyncio.wait_for(engine.agenerate([1, 2, 3], LONG, **SHIFT), pause)

    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: engine.agenerate([1, "a"]),  # type: ignore[list-item]
        lambda: engine.agenerate([]),
        lambda: engine.agenerate([-1]),
        lambda: engine.agenerate([1] * 9000),
        lambda: engine.agenerate([[1], [-1]]),
        lambda: engine.agenerate([1], SHORT, num_keep=-1),
        lambda: engine.agenerate([1], SHORT, timeout=1e-9),
        lambda: engine.agenerate([1], banned),
        lambda: cancelled(0.001),
        lambda: cancelled(0.02),
    ]

    async def work() -> tuple[list[object], Completion]:
        failing = (calls[number % len(calls)]() for number in range(700))
        ended = await asyncio.gather(*failing, return_exceptions=True)
        return list(ended), await engine.agenerate([1, 2, 3], SHORT)

    ended, answer = run(work)
    assert all(isinstance(outcome, (EngineError, asyncio.TimeoutError)) for outcome in ended)
    assert not any(isinstance(outcome, EngineBusyError) for outcome in ended)
    assert len(answer.tokens) == 10


def test_a_timeout_around_a_call(engine: Engine) -> None:
    async def work() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.agenerate([1, 2], LONG, **SHIFT), 0.05)
        with pytest.raises(DeadlineError, match=r"timeout of 0\.05 s"):
            await engine.agenerate([1, 2], LONG, timeout=0.05, **SHIFT)

    run(work)


def test_closing_a_stream(engine: Engine) -> None:
    async def work() -> None:
        stream = engine.astream([1, 2], LONG, **SHIFT)
        await anext(stream)
        await stream.aclose()
        await stream.aclose()
        assert [chunk async for chunk in stream] == []
        async with engine.astream([1, 2], LONG) as other:
            async for _ in other:
                break
        assert [chunk async for chunk in other] == []

    run(work)


def test_closing_a_stream_that_another_task_waits_for(engine: Engine) -> None:
    async def work() -> None:
        blockers = [engine.astream([i], LONG, **SHIFT) for i in range(4)]
        for blocker in blockers:
            await anext(blocker)
        stream = engine.astream([9], LONG)

        async def wait() -> list[Any]:
            return [chunk async for chunk in stream]

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        await stream.aclose()
        assert await waiting == []
        for blocker in blockers:
            await blocker.aclose()

    run(work)


def test_tasks_may_share_a_stream(engine: Engine) -> None:
    async def work() -> list[int]:
        stream = engine.astream([1, 2], SHORT)

        async def take() -> list[int]:
            return [token async for chunk in stream for token in chunk.tokens]

        return [token for part in await asyncio.gather(take(), take(), take()) for token in part]

    assert sorted(run(work)) == sorted(engine.generate([1, 2], SHORT).tokens)


def test_dropping_a_stream(engine: Engine) -> None:
    async def work() -> None:
        stream = engine.astream([1, 2], LONG)
        await anext(stream)
        del stream
        engine.astream([3, 4], LONG)
        async for _ in engine.astream([5, 6], LONG):
            break

    run(work)


def test_an_event_loop_that_is_closed_early(engine: Engine) -> None:
    """Nobody will ever look into such a mailbox: its request ends, though somebody keeps the stream."""
    kept = []

    async def work() -> None:
        kept.append(engine.astream([1, 2], LONG, **SHIFT))
        await anext(kept[0])

    before = engine.metrics.requests["cancelled"]
    run(work)
    idle(engine)
    assert engine.metrics.requests["cancelled"] == before + 1


def test_errors_come_out_where_they_are_awaited(engine: Engine) -> None:
    async def work() -> None:
        with pytest.raises(ContextOverflowError):
            await engine.agenerate([1] * 9000)
        with pytest.raises(ConfigError):
            engine.astream([])
        with pytest.raises(ContextOverflowError):
            await engine.agenerate([[1], [1] * 9000], LONG)
        with pytest.raises(TokenizerError):
            await engine.agenerate([[1 + i] for i in range(400)], LONG)

    run(work)


def test_a_stream_outside_of_an_event_loop_is_refused(engine: Engine) -> None:
    with pytest.raises(RuntimeError, match=r"no running event loop: .* under trio in a thread"):
        engine.astream([1])


@pytest.mark.parametrize("method", ["agenerate", "aembed", "achat_stream"])
def test_a_coroutine_that_another_framework_drives_is_refused(engine: Engine, method: str) -> None:
    """As trio does: no event loop of asyncio's runs."""

    async def work() -> None:
        if method == "achat_stream":
            engine.achat_stream([{"role": "user", "content": "a"}], template="{{ messages[0].content }}")
        else:
            await getattr(engine, method)([1])

    with pytest.raises(RuntimeError, match=r"no running event loop: .* under trio in a thread"):
        work().send(None)
    assert engine.slots() == []


def test_closing_the_engine_under_tasks(tmp_path: Any) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1, n_ctx=4096).path
    engine = Engine(path, num_ctx=4096, parallel=2, threads=1)

    async def work() -> list[Any]:
        tasks = [asyncio.create_task(engine.agenerate([1 + i], LONG, **SHIFT)) for i in range(8)]
        await asyncio.sleep(0.02)
        await asyncio.to_thread(engine.close)
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert {type(outcome) for outcome in run(work)} == {ClosedError}
