"""How calls for embeddings are served: in what order, until when, off the event loop, and what is told of them."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ClosedError, ComputeError, DeadlineError, EngineBusyError, EngineError
from ollama_engine.runner.embed.call import EmbeddingCall
from tests.models import encoders
from tests.support.engine_thread import held_in, idle
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import eventually

CPU: dict[str, Any] = {"threads": 1, "gpu_layers": 0}
SAME = 1e-4
MANY = 10_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("embed"))


@pytest.fixture
def bert(folder: Path) -> Iterator[Engine]:
    with Engine(encoders.converted(encoders.case("bert"), folder), batch_size=64, **CPU) as engine:
        yield engine


class Held:
    """What the embedder computes waits until `go`; each batch is remembered by the first tokens of its texts."""

    def __init__(self, engine: Engine) -> None:
        self.embedder = engine._embedding()._batcher._embedder
        self.fed = threading.Semaphore(0)
        self.go = threading.Event()
        self.waits = threading.Event()
        self.batches: list[list[int]] = []
        self.error: BaseException | None = None

    @contextmanager
    def hold(self) -> Iterator[Held]:
        compute = self.embedder.compute

        def spy(texts: Any) -> Any:
            self.waits.set()
            assert self.go.wait(30)
            self.batches.append([int(text.tokens[0]) for text in texts])
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            return compute(texts)

        feed = EmbeddingCall.feed

        def count(call: EmbeddingCall[Any]) -> None:
            feed(call)
            self.fed.release()

        self.embedder.compute = spy  # type: ignore[method-assign]
        try:
            with patch.object(EmbeddingCall, "feed", count):
                yield self
        finally:
            self.go.set()
            self.embedder.compute = compute  # type: ignore[method-assign]

    def submit(self, pool: ThreadPoolExecutor, call: Callable[[], Any]) -> Future[Any]:
        """In a thread; it has come to the engine, with all of its texts, when this returns."""
        made = pool.submit(call)
        assert self.fed.acquire(timeout=30)
        return made


# -- order and time ----------------------------------------------------------------------------------------------------


def test_higher_priority_is_served_first_and_nobody_starves(bert: Engine) -> None:
    def ids(first: int, n: int) -> list[list[int]]:
        return [[first, *[6] * 31] for _ in range(n)]  # two in a batch

    bert.embed("a")
    with Held(bert).hold() as held, ThreadPoolExecutor(4) as pool:
        jobs = [held.submit(pool, lambda: bert.embed([[9, *[6] * 63]]))]
        assert held.waits.wait(30)
        jobs += [held.submit(pool, lambda: bert.embed(ids(10, 2)))]
        jobs += [held.submit(pool, lambda: bert.embed(ids(11, 40), priority=1))]
        jobs += [held.submit(pool, lambda: bert.embed(ids(12, 2), priority=2))]
        held.go.set()
        for job in jobs:
            job.result()
    order = held.batches
    assert order[:2] == [[9], [12, 12]]
    assert order[2] == [11, 11]
    # The oldest had its turn before the many of higher priority were through.
    assert next(i for i, batch in enumerate(order) if 10 in batch) < 12


@pytest.mark.parametrize("way", ["embed", "embeddings", "aembed"])
def test_a_call_that_is_late_ends(bert: Engine, way: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "embed": lambda: bert.embed(["a thing"] * 20_000, timeout=0.05),
        "embeddings": lambda: bert.embeddings(["a thing"] * 20_000, timeout=0.05),
        "aembed": lambda: asyncio.run(bert.aembed(["a thing"] * 20_000, timeout=0.05)),
    }
    with pytest.raises(DeadlineError, match=r"the request has not ended within its timeout of 0.05 s"):
        calls[way]()
    assert bert.metrics.embedded_texts < 20_000
    assert bert.embed("a", timeout=30).shape == (64,)
    assert bert.metrics.requests["deadline"] == 1


# -- what fails --------------------------------------------------------------------------------------------------------


def test_a_fault_in_one_batch_ends_that_batch(bert: Engine) -> None:
    alone = bert.embed("a")
    with Held(bert).hold() as held, ThreadPoolExecutor(3) as pool:
        held.error = ZeroDivisionError("a fault of ours")
        first = held.submit(pool, lambda: bert.embed([5, *[6] * 63]))
        assert held.waits.wait(30)
        other = held.submit(pool, lambda: bert.embed("a"))
        held.go.set()
        with pytest.raises(EngineError, match=r"ZeroDivisionError\('a fault of ours'\)") as told:
            first.result()
        assert isinstance(told.value.__cause__, ZeroDivisionError)
        np.testing.assert_allclose(other.result(), alone, atol=SAME)
    assert bert.metrics.requests["error"] == 1


@pytest.mark.parametrize("name", ["launch", "_finish", "_read", "_build"])
@pytest.mark.parametrize("model", ["bert", "llama"])
def test_a_fault_anywhere_in_computing_leaves_an_engine_that_works(
    model: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = encoders.converted(encoders.case("bert"), folder) if model == "bert" else write_tiny_llama(folder / "l").path
    params = SamplingParams(temperature=0, max_tokens=4, logit_bias={318: -np.inf, 319: -np.inf})
    with Engine(path, num_ctx=64, **CPU) as engine:
        alone = engine.embed("a thing")
        answer = engine.generate([5, 6], params).tokens if model == "llama" else ()
        executor = engine._loaded.text_executor

        def fail(*_: object) -> None:
            raise ZeroDivisionError("a fault of ours")

        with monkeypatch.context() as patch:
            patch.setattr(executor, name, fail)
            with pytest.raises(ComputeError, match="a fault of ours"):
                engine.embed("another thing")
        np.testing.assert_allclose(engine.embed("a thing"), alone, atol=SAME)
        assert model == "bert" or engine.generate([5, 6], params).tokens == answer


# -- asyncio -----------------------------------------------------------------------------------------------------------


async def longest_pause(stop: asyncio.Event) -> float:
    """Seconds for which the event loop did nothing else, at most."""
    longest, before = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    return longest


@pytest.mark.slow
@pytest.mark.timing("how long the system lets this thread rest while it computes in another one")
def test_many_texts_do_not_hold_up_the_event_loop(folder: Path) -> None:
    """Cutting them into tokens, and making one array of the vectors, goes on beside the event loop."""
    texts = [f"{i % 10}" for i in range(MANY)]

    async def work(engine: Engine) -> float:
        stop = asyncio.Event()
        pause = asyncio.create_task(longest_pause(stop))
        await asyncio.sleep(0.01)
        assert (await engine.aembed(texts)).shape == (MANY, 64)
        stop.set()
        return await pause

    with Engine(encoders.converted(encoders.case("bert"), folder), batch_size=2048, **CPU) as engine:
        begin = time.perf_counter()
        engine.embed(texts)
        alone = time.perf_counter() - begin
        # Threads take turns of 5 ms, and others use the machine too: the best of some.
        assert min(asyncio.run(work(engine)) for _ in range(2)) < alone / 4


def test_tokens_are_cut_in_another_thread_where_they_are_many(bert: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    where: set[threading.Thread] = set()
    encode = bert._submission.loaded.tokenizer.encode

    def spy(text: str, **options: Any) -> list[int]:
        where.add(threading.current_thread())
        return encode(text, **options)

    monkeypatch.setattr(bert._submission.loaded.tokenizer, "encode", spy)
    for texts, here in (("a", True), (["a"] * 20, True), (["a"] * 5_000, False), ("a " * 9_000, False)):
        where.clear()
        asyncio.run(bert.aembeddings(texts if isinstance(texts, list) else [texts], on_overflow="truncate"))
        assert where
        assert (threading.current_thread() in where) == here


def test_cancelling_stops_all_of_it(bert: Engine) -> None:
    cut = 0
    tokenizer = bert._submission.loaded.tokenizer
    encode = tokenizer.encode

    def slow(text: str, **options: Any) -> list[int]:
        nonlocal cut
        cut += 1
        time.sleep(0.0005)
        return encode(text, **options)

    async def work() -> None:
        task = asyncio.create_task(bert.aembed(["a thing"] * MANY))
        while not cut:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "encode", slow)
        asyncio.run(work())  # to the end of its threads
    assert cut < MANY
    idle(bert)
    assert bert.embed("a").shape == (64,)


def test_what_is_wrong_with_one_of_many_texts(bert: Engine) -> None:
    texts: list[Any] = ["a thing"] * 3_000 + [None]
    with pytest.raises(EngineError, match=r"texts\[3000\]: a prompt is a str"):
        asyncio.run(bert.aembed(texts))
    with pytest.raises(EngineError, match=r"texts\[3000\]: a prompt is a str"):
        bert.embed(texts)
    assert not bert.slots()
    assert bert.embed("a").shape == (64,)


def test_the_list_may_change_once_the_call_has_begun(bert: Engine) -> None:
    async def work() -> None:
        texts = ["a thing"] * 3_000
        task = asyncio.create_task(bert.aembed(texts))
        await asyncio.sleep(0)
        texts.clear()
        assert (await task).shape == (3_000, 64)

    asyncio.run(work())


def test_an_event_loop_that_is_gone(bert: Engine) -> None:
    """Nobody waits any more; others do."""
    with Held(bert).hold() as held:
        loop = asyncio.new_event_loop()
        task = loop.create_task(bert.aembed("a"))
        loop.run_until_complete(asyncio.sleep(0.01))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
        held.go.set()
        assert bert.embed("a").shape == (64,)
    del task


# -- what is kept ------------------------------------------------------------------------------------------------------


def array_of(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array that owns the memory of a view."""
    return vectors if vectors.base is None else array_of(vectors.base)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("way", ["embed", "aembed", "one", "embeddings"])
def test_results_are_the_callers_alone(bert: Engine, way: str, closed: bool) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "embed": lambda: bert.embed(["x"] * 100),
        "aembed": lambda: asyncio.run(bert.aembed(["x"] * 100)),
        "one": lambda: bert.embed("x"),
        "embeddings": lambda: bert.embeddings(["x"])[0].vector,
    }
    found = weakref.ref(array_of(calls[way]()))
    if closed:
        bert.close()
    gone(found)


@pytest.mark.parametrize("wrong", [[5] * 1000, None])
def test_nothing_is_kept_of_calls_that_failed(bert: Engine, wrong: Any) -> None:
    made: list[weakref.ref[Any]] = []
    submit = bert._engine_thread.submit

    def spy(request: Any) -> None:
        made.append(weakref.ref(request.results))
        submit(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bert._engine_thread, "submit", spy)
        with pytest.raises(EngineError):
            bert.embed([wrong])
        with pytest.raises(EngineError):
            asyncio.run(bert.aembed([wrong]))
    assert len(made) == 2
    for found in made:
        gone(found)


def gone(found: weakref.ref[Any]) -> None:
    """Soon: the engine's thread may be on its way out of the call."""

    def collected() -> bool:
        gc.collect()
        return found() is None

    eventually(collected)


# -- what is told ------------------------------------------------------------------------------------------------------


def test_metrics(bert: Engine) -> None:
    bert.embed(["a", "a thing"])
    bert.embeddings(["a thing"])
    with ThreadPoolExecutor(1) as pool:
        with held_in(bert._embedding()._batcher._embedder, "compute", calls=2) as is_held:
            job = pool.submit(bert.embed, [[5, 6, 7]] * 1_000)
            is_held()
            found = bert.metrics
            bert._engine_thread.close(wait=False)
        assert isinstance(job.exception(), ClosedError)
    assert found.requests["stop"] == found.requests_by_kind["embedding"]["stop"] == 2
    assert found.embedded_texts > 3
    assert found.embedded_tokens > sum(len(text) for text in (["a", 1, 2], [1, 2, 3], [1, 2, 3]))
    assert found.embed_batches > 2
    assert 0 < found.embed_seconds < 60
    assert sum(found.requests_by_kind["generation"].values()) == found.prompt_tokens == 0


def test_calls_that_are_refused_are_counted(folder: Path) -> None:
    with Engine(encoders.converted(encoders.case("bert"), folder), max_queue=0, parallel=1, **CPU) as engine:
        engine.embed("a")
        with Held(engine).hold() as held, ThreadPoolExecutor(1) as pool:
            held.submit(pool, lambda: engine.embed("a"))
            with pytest.raises(EngineBusyError, match="max_queue is 0"):
                engine.embed("a")
            held.go.set()
        assert engine.metrics.requests_by_kind["embedding"]["rejected"] == 1


@pytest.mark.parametrize("good", [0, 1, 1000])
def test_a_call_that_fails_as_its_texts_are_cut_is_one_error(bert: Engine, good: int) -> None:
    texts: list[Any] = [[5] * 20] * good + [[5] * 1000]
    for n, call in enumerate((lambda: bert.embed(texts), lambda: asyncio.run(bert.aembed(texts))), 1):
        with pytest.raises(EngineError, match=rf"texts\[{good}\]: a text has 1000 tokens"):
            call()
        assert not bert.slots()
        assert {how: count for how, count in bert.metrics.requests.items() if count} == {"error": n}


def test_a_call_that_is_taken_back_leaves_the_queue(bert: Engine) -> None:
    """Though nobody else asks for embeddings."""

    async def work() -> None:
        with Held(bert).hold() as held:
            task = asyncio.create_task(bert.aembed([[5] * 60] * 20))
            while not held.waits.is_set():
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(work())
    eventually(lambda: not bert.slots())
    assert bert.metrics.requests["cancelled"] == 1


def test_the_timeline_and_the_log(bert: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(5, "ollama_engine.trace"):
        bert.embed(["a thing"], priority=3)
    events = json.loads(bert.trace())["traceEvents"]
    (begin,) = [event for event in events if event["ph"] == "b"]
    assert [event["name"] for event in events if event["ph"] == "e"] == ["request 0"]
    (batch,) = [event for event in events if event["ph"] == "X"]
    told = begin["args"]
    n_tokens = len(bert.tokenize("a thing"))
    assert (begin["name"], told["kind"], told["priority"]) == ("request 0", "embedding", 3)
    assert (told["outcome"], told["prompt_tokens"]) == ("stop", n_tokens)
    assert batch["name"] == "batch 1"
    assert batch["dur"] > 0
    assert (batch["args"]["prompt_tokens"], batch["args"]["sequences"]) == (n_tokens, 1)
    lines = [record.getMessage() for record in caplog.records if record.levelno < logging.DEBUG]
    assert len(lines) == 1
    assert lines[0].startswith("batch 1 of texts: 2=")
