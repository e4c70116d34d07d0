"""Engine(..., isolation="process"): the same calls give the same, and a crash there is an error here."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, ProcessEngine, SamplingParams, demo
from ollama_engine.errors import (
    ChatError,
    ClosedError,
    ConfigError,
    ContextOverflowError,
    ModelFormatError,
    ModelProcessError,
    UnknownOptionError,
)
from tests.support.waiting import WAIT_SECONDS, ended, eventually, join, status_of

GREEDY = SamplingParams(temperature=0, max_tokens=8)
OPTIONS: dict[str, Any] = {"num_ctx": 128, "parallel": 2, "threads": 1, "batch_size": 64, "draft": "off"}
FOREVER = {"type": "string", "minLength": 100_000}
HELLO = [{"role": "user", "content": "Tell me of a fox."}]


@dataclass
class Fox:
    name: str


def weather(city: str) -> str:
    """The weather.

    Args:
        city: where.
    """
    return city


@pytest.fixture(scope="module")
def here() -> Iterator[Engine]:
    with Engine(demo.path(), **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def there() -> Iterator[Any]:
    with Engine(demo.path(), **OPTIONS, isolation="process") as engine:
        yield engine


def plain(value: Any) -> Any:
    """Without times, and arrays as lists: near ones are equal."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.round(3).tolist()
    if hasattr(value, "usage"):
        return {
            name: getattr(value, name) for name in type(value).__dataclass_fields__ if name not in ("usage", "reader")
        }
    return value


CALLS: dict[str, Callable[[Any], Any]] = {
    "generate": lambda e: e.generate("One day", GREEDY),
    "several": lambda e: e.generate(["One day", "Two"], GREEDY, n=2),
    "keywords": lambda e: e.generate("One day", temperature=0, max_tokens=3),
    "logprobs": lambda e: e.generate("One day", SamplingParams(temperature=0, max_tokens=2, logprobs=1)).tokens,
    "stream": lambda e: "".join(chunk.text for chunk in e.stream("One day", GREEDY)),
    "format": lambda e: e.generate("One day", GREEDY, format={"enum": ["a", "b"]}).parsed,
    "format behind reasoning": lambda e: (
        e.chat(HELLO, temperature=0, max_tokens=60, format=Fox, dialect="hermes", reasoning_budget=4).parsed.name
    ),
    "type": lambda e: e.chat(HELLO, temperature=0, max_tokens=60, format=Fox).parsed.name,
    "chat": lambda e: e.chat(HELLO, GREEDY),
    "chat_stream": lambda e: e.chat_stream(HELLO, GREEDY).result().content,
    "tools": lambda e: e.apply_template(HELLO, tools=[weather]),
    "apply_template": lambda e: e.apply_template(HELLO),
    "chat_template": lambda e: (e.chat_templates, e.chat_template()),
    "embed": lambda e: e.embed(["a fox", "b"]),
    "embeddings": lambda e: [item.prompt_tokens for item in e.embeddings(["a fox", "b"])],
    "score": lambda e: [round(score.logprob, 3) for score in e.score("One", [" day", " night"])],
    "logits": lambda e: e.logits("One day").argmax(-1),
    "tokens": lambda e: (e.tokenize("a fox"), e.detokenize([300, 301]), e.token_bytes(300)),
    "facts": lambda e: (e.info.n_vocab, e.info.num_ctx, e.info.system, e.config, e.memory.total, list(e.info.metadata)),
    "state": lambda e: (e.slots(), e.metrics.cells._fields, e.cancel(10**6), e.set_priority(10**6, 1)),
    "agenerate": lambda e: asyncio.run(e.agenerate("One day", GREEDY)),
    "achat": lambda e: asyncio.run(e.achat(HELLO, GREEDY)),
    "astream": lambda e: asyncio.run(pieces(e)),
}


async def pieces(engine: Any) -> list[str]:
    return [chunk.text async for chunk in engine.astream("One day", GREEDY)]


@pytest.mark.parametrize("call", CALLS)
def test_calls_give_the_same(here: Engine, there: Any, call: str) -> None:
    assert isinstance(there, ProcessEngine)
    assert plain(CALLS[call](there)) == plain(CALLS[call](here))


WRONG: dict[str, tuple[Callable[[Any], Any], type[Exception]]] = {
    "prompt": (lambda e: e.generate([5] * 500, GREEDY), ContextOverflowError),
    "priority": (lambda e: e.set_priority(0, 1 << 40) if e.slots() else e.generate("x", priority=1 << 40), ConfigError),
    "roles": (lambda e: e.chat([{"role": 5}]), ChatError),
    "stream": (lambda e: list(e.stream([5] * 500, GREEDY)), ContextOverflowError),
    "unknown": (lambda e: e.generate("x", temperatur=1), UnknownOptionError),
}


@pytest.mark.parametrize("call", WRONG)
def test_errors_are_the_same(here: Engine, there: Any, call: str) -> None:
    wrong, kind = WRONG[call]
    with pytest.raises(kind) as first:
        wrong(here)
    with pytest.raises(kind) as second:
        wrong(there)
    assert str(second.value) == str(first.value)


def test_what_cannot_cross_is_refused(there: Any) -> None:
    with pytest.raises(ConfigError, match="isolation none"):
        there.generate("x", GREEDY, logits_processors=[lambda ids, row: None])
    for name in ("session", "load_session", "submit", "fork", "map_batches"):
        with pytest.raises(
            ConfigError, match=f"has no {name}: what it returns shares .* load the model in this process"
        ):
            getattr(there, name)()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = there.nonsense


def test_loads_that_fail(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Engine(tmp_path / "none.gguf", isolation="process")
    with pytest.raises(ConfigError, match="isolation"):
        Engine(demo.path(), isolation="box")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        Engine(demo.path(), isolation="process", parallel=0)
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    with pytest.raises(ModelFormatError):
        Engine(tmp_path / "bad.gguf", isolation="process")


def test_whoever_leaves_ends_the_request(there: Any) -> None:
    """By closing or dropping a stream, and by cancelling a task."""
    stream = there.stream("One day", max_tokens=10**6, format=FOREVER, on_overflow="shift")
    next(stream)
    stream.close()
    assert next(stream, None) is None
    dropped = there.stream("One day", max_tokens=10**6, format=FOREVER, on_overflow="shift")
    next(dropped)
    del dropped
    gc.collect()

    async def cancelled() -> None:
        work = there.agenerate("One day", max_tokens=10**6, format=FOREVER, on_overflow="shift")
        task = asyncio.create_task(work)
        while not await asyncio.to_thread(there.slots):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    eventually(lambda: not there.slots())
    asyncio.run(cancelled())
    eventually(lambda: not there.slots())


def test_a_crash_is_an_error_here_and_another_engine_goes_on(here: Engine) -> None:
    engine: Any = Engine(demo.path(), **OPTIONS, isolation="process")
    stream = engine.stream("One day", max_tokens=10**6, format=FOREVER, on_overflow="shift")
    next(stream)
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(ModelProcessError, match="was ended by SIGKILL"):
        for _ in stream:
            pass
    with pytest.raises(ModelProcessError, match="was ended by SIGKILL"):
        engine.generate("One day", GREEDY)
    assert engine.closed
    engine.close()
    with pytest.raises(ClosedError):
        engine.generate("One day", GREEDY)
    assert here.generate("One day", GREEDY).text


def test_closing_ends_what_runs(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    made: Any = Engine(demo.path(), **OPTIONS, isolation="process", progress=lambda *done: progress.append(done))
    assert progress[-1] == (1000, 1000)
    errors: list[BaseException | None] = []

    def ask() -> None:
        errors.append(ended(lambda: made.generate("One day", max_tokens=10**6, format=FOREVER, on_overflow="shift")))

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(made.slots)
    made.close()
    made.close()
    join(thread, seconds=WAIT_SECONDS)
    assert isinstance(errors[0], (ClosedError, ModelProcessError))
    with pytest.raises(ClosedError), made:
        pass


def test_a_task_that_waits_while_the_event_loop_ends_gets_an_error() -> None:
    """CancelledError would tell a task that itself was cancelled."""
    engine: Any = Engine(demo.path(), **OPTIONS, isolation="process")

    async def ask() -> None:
        waiting = [asyncio.ensure_future(engine._coming(asyncio.sleep(10_000))) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.to_thread(engine.close)
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        with pytest.raises(ClosedError):
            await waiting[1]

    asyncio.run(ask())


def test_a_call_beside_close_is_refused_or_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = Engine(demo.path(), **OPTIONS, isolation="process")
    closing = threading.Thread(target=engine.close)
    process, submit = engine._process, asyncio.run_coroutine_threadsafe

    async def at_once() -> None:
        process.kill()
        process._process.stdin.close()
        await process.client.aclose()
        process.remove_folder()

    def late(work: Any, loop: Any) -> Any:
        if threading.current_thread() is not closing and closing.ident is None:
            closing.start()
            for _ in range(50):  # it waits until this call is submitted; or, which is wrong, it closes the loop
                closing.join(0.01)
                if loop.is_closed():
                    break
        return submit(work, loop)

    monkeypatch.setattr(process, "close", at_once)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", late)
    errors: list[BaseException | None] = []
    calling = threading.Thread(target=lambda: errors.append(ended(lambda: engine.generate("x", format=FOREVER))))
    calling.start()
    join(calling, seconds=WAIT_SECONDS)
    join(closing, seconds=WAIT_SECONDS)
    assert isinstance(errors[0], (ClosedError, ModelProcessError))


def test_a_forked_child_leaves_the_process_alone(there: Any) -> None:
    """The finalizer also runs in a child that drops the engine or ends by `sys.exit`, and so do ends of streams."""
    stream = there.stream("One day", GREEDY)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            stream.close()
            there._end()
            status = 0
        finally:
            os._exit(status)
    assert status_of(child) == 0
    assert len(list(stream)) == GREEDY.max_tokens
    assert there.tokenize("a fox")


def test_a_dropped_engine_ends_its_process() -> None:
    engine: Any = Engine(demo.path(), **OPTIONS, isolation="process")
    process, loop = engine._process._process, engine._loop
    del engine
    gc.collect()
    eventually(lambda: process.poll() is not None)
    eventually(loop.is_closed)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="memory is given back on Linux only")
def test_it_sleeps_and_wakes_up(there: Any) -> None:
    expected = there.generate("Once", max_tokens=4, temperature=0).tokens
    there.sleep()
    assert there.is_sleeping
    there.wake_up()
    assert not there.is_sleeping
    assert there.generate("Once", max_tokens=4, temperature=0).tokens == expected


@pytest.mark.parametrize("method", ["agenerate", "astream"])
def test_a_coroutine_that_another_framework_drives_is_refused(there: Any, method: str) -> None:
    async def work() -> None:
        if method == "astream":
            there.astream("One day", GREEDY)
        else:
            await there.agenerate("x" * 100_000, GREEDY)

    with pytest.raises(RuntimeError, match=r"no running event loop: .* under trio in a thread"):
        work().send(None)
    eventually(lambda: there.slots() == [])


def test_its_methods_show_the_parameters_of_an_engine(there: Any, here: Engine) -> None:
    for method in ("generate", "achat", "tokenize", "session"):
        assert inspect.signature(getattr(there, method)) == inspect.signature(getattr(here, method))


def test_a_frozen_program_does_not_start_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyInstaller sets `sys.frozen`, and its `sys.executable` is the program."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConfigError, match="isolation 'process' needs a Python to start, and a frozen program has none"):
        Engine(demo.path(), isolation="process")


def test_closing_under_an_answer_prints_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """A window that is closed in the middle of an answer: the caller gets the error."""
    engine: Any = Engine(demo.path(), **OPTIONS, isolation="process")
    stream = engine.stream("One day", max_tokens=100_000, on_overflow="shift", format=FOREVER)
    next(stream)
    engine.close()
    with pytest.raises(ClosedError):
        list(stream)
    assert "Traceback" not in capfd.readouterr().err
