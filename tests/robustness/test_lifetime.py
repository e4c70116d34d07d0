"""Engines and streams that are closed, dropped, shared, forked and left behind at any moment."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ClosedError, EngineBusyError
from ollama_engine.runner.execute.executor import Executor
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_answers import NO_END
from tests.support.waiting import eventually

PATIENCE = 50
"""Seconds after which something is taken to hang."""
LONG = SamplingParams(logit_bias=NO_END, seed=1)
SHIFT: Any = {"on_overflow": "shift"}
"""With LONG, an answer that never ends by itself."""
SHORT = SamplingParams(logit_bias=NO_END, seed=1, max_tokens=8)
NUM_CTX = 8192


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1, n_ctx=NUM_CTX).path


def open_engine(path: str) -> Engine:
    return Engine(path, num_ctx=NUM_CTX, parallel=1, threads=1)


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with open_engine(path) as made:
        yield made


def wait_for_end(engine_thread: threading.Thread) -> None:
    engine_thread.join(PATIENCE)
    assert not engine_thread.is_alive()


# -- cancelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1, 5])
@pytest.mark.parametrize("how", ["close", "drop", "with"])
def test_a_stream_that_is_given_up_ends_its_request(engine: Engine, how: str, taken: int) -> None:
    expected = engine.generate([1, 2, 3], SHORT).tokens
    stream = engine.stream([1, 2, 3], LONG, num_keep=3, **SHIFT)
    for _ in range(taken):
        next(stream)
    request = stream._request
    if how == "close":
        stream.close()
        assert list(stream) == []
        stream.close()
    elif how == "with":
        with stream:
            pass
    del stream
    assert engine.generate([1, 2, 3], SHORT).tokens == expected
    with pytest.raises(ClosedError, match="cancelled"):
        request.result(PATIENCE)
    assert engine.logits([1]).shape == (1, 320)
    assert engine.metrics.requests["cancelled"] == 1
    # What was computed of it stays, for others that begin alike.
    assert engine.generate([1, 2, 3, 4], SHORT).usage.cached_tokens == 3


def test_closing_a_stream_from_another_thread(engine: Engine) -> None:
    blocker, stream = engine.stream([1], LONG, **SHIFT), engine.stream([2], LONG)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(list, stream)  # in the queue behind the other one
        next(blocker)
        stream.close()
        blocker.close()
        assert waiting.result(PATIENCE) == []


def test_threads_may_share_a_stream(engine: Engine) -> None:
    expected = engine.generate([4], SamplingParams(logit_bias=NO_END, seed=1, max_tokens=60)).tokens
    stream = engine.stream([4], SamplingParams(logit_bias=NO_END, seed=1, max_tokens=60))
    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(list, stream) for _ in range(4)]
        tokens = [token for part in parts for chunk in part.result(PATIENCE) for token in chunk.tokens]
    assert sorted(tokens) == sorted(expected)


# -- closing -----------------------------------------------------------------------------------------------------------

CALLS: list[Callable[[Engine], Any]] = [
    lambda e: e.generate("a"),
    lambda e: e.stream("a"),
    lambda e: e.logits("a"),
    lambda e: e.generate([1]),
    lambda e: e.stream([1]),
    lambda e: e.logits([1]),
    lambda e: e.tokenize("a"),
    lambda e: e.detokenize([1]),
    lambda e: e.info,
    lambda e: e.memory,
    lambda e: e.config,
    lambda e: e.__enter__(),
]


def test_everything_but_close_raises_when_closed(path: str) -> None:
    with open_engine(path) as engine:
        finished = engine.stream([1], SHORT)
    for call in CALLS:
        with pytest.raises(ClosedError, match="closed"):
            call(engine)
    with pytest.raises(ClosedError):
        list(finished)
    engine.close()
    assert repr(engine) == f"Engine({path!r}, closed)"
    assert Engine.devices()


@pytest.mark.parametrize("call", ["generate", "logits"])
def test_closing_ends_the_running_and_the_waiting_requests(path: str, call: str) -> None:
    engine = open_engine(path)
    first = engine.stream([1], LONG, **SHIFT)
    next(first)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(getattr(engine, call), [2] * 50) for _ in range(8)]
        engine.close()
        for future in waiting:
            assert isinstance(future.exception(PATIENCE), ClosedError)
    with pytest.raises(ClosedError, match="while"):
        for _ in first:
            pass
    assert list(first) == []
    assert not engine._engine_thread._thread.is_alive()


def test_closing_while_logits_are_computed(path: str) -> None:
    engine = open_engine(path)
    finish = Executor._finish

    def finish_late(*args: Any) -> Any:
        eventually(lambda: engine.closed)
        return finish(*args)

    with ThreadPoolExecutor(1) as pool, patch.object(Executor, "_finish", finish_late):
        running = pool.submit(engine.logits, [1] * NUM_CTX)
        eventually(engine.slots)
        engine.close()
        error = running.exception(PATIENCE)
    assert isinstance(error, ClosedError)


def test_closing_while_other_threads_ask_for_everything(path: str) -> None:
    """They get answers, or are told that too many wait, then ClosedError, and nothing else."""
    engine = open_engine(path)
    ready = threading.Barrier(len(CALLS) + 1)

    def ask(call: Callable[[Engine], Any]) -> BaseException:
        ready.wait(PATIENCE)
        while True:
            try:
                call(engine)
            except EngineBusyError:
                time.sleep(0.001)
            except ClosedError as error:
                return error

    with ThreadPoolExecutor(len(CALLS)) as pool:
        asked = [pool.submit(ask, call) for call in CALLS]
        ready.wait(PATIENCE)
        engine.logits([1] * 100)
        engine.close()
        assert {type(future.result(PATIENCE)) for future in asked} == {ClosedError}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_closing_lets_go_of_the_file(path: str) -> None:
    def mapped() -> bool:
        return path in Path("/proc/self/maps").read_text()

    with open_engine(path) as engine:
        engine.generate([1], SHORT)
        assert mapped()
    assert not mapped()
    assert not [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and str(fd.readlink()) == path]


def test_closing_from_several_threads(path: str) -> None:
    engine = open_engine(path)
    stream = engine.stream([1], LONG)
    next(stream)
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(engine.close) for _ in range(4)]:
            future.result(PATIENCE)
    assert not engine._engine_thread._thread.is_alive()


def test_an_error_inside_with_closes(path: str) -> None:
    def fail(engine: Engine) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), open_engine(path) as engine:
        fail(engine)
    with pytest.raises(ClosedError):
        engine.generate([1])


# -- dropping ----------------------------------------------------------------------------------------------------------


def test_a_dropped_engine_frees_its_model(path: str) -> None:
    engine = open_engine(path)
    engine.generate([1], SHORT)
    gone, thread = weakref.ref(engine), engine._engine_thread._thread
    del engine
    assert gone() is None
    wait_for_end(thread)


def test_a_stream_keeps_its_engine_alive(path: str, engine: Engine) -> None:
    expected = [chunk.tokens for chunk in engine.stream([1], SHORT)]
    assert [chunk.tokens for chunk in open_engine(path).stream([1], SHORT)] == expected


def test_an_engine_is_dropped_after_an_error(path: str) -> None:
    engine = open_engine(path)
    stream = engine.stream([1], SamplingParams(logit_bias=dict.fromkeys(range(320), float("-inf"))))
    with pytest.raises(ValueError, match="every token is at -inf"):
        next(stream)
    gone, thread = weakref.ref(engine), engine._engine_thread._thread
    del engine, stream
    # The step that gave the error may not be over; it holds the error, and that the frames that it went through.
    eventually(lambda: gc.collect() >= 0 and gone() is None)
    wait_for_end(thread)


def test_engine_and_stream_in_a_cycle_are_collected_while_running(path: str) -> None:
    class Holder:
        pass

    holder: Any = Holder()
    holder.me, holder.stream = holder, open_engine(path).stream([1], LONG)
    thread = holder.stream._request.engine._engine_thread._thread
    next(holder.stream)
    del holder
    gc.collect()
    wait_for_end(thread)


# -- sharing -----------------------------------------------------------------------------------------------------------


def test_calls_from_eight_threads_give_the_answers_they_give_alone(engine: Engine) -> None:
    def work(number: int) -> tuple[Any, ...]:
        params = SamplingParams(seed=number, max_tokens=10 + number, logprobs=1)
        prompt = [number + 1, 50, 60 + number]
        done = engine.generate(prompt, params)
        streamed = [chunk.tokens for chunk in engine.stream(prompt, params)]
        return done.text, done.tokens, streamed, engine.tokenize("ab c"), done.logprobs, engine.logits(prompt)

    alone = [work(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(work, range(8), timeout=PATIENCE))
    for found, expected in zip(together, alone, strict=True):
        assert found[:4] == expected[:4]
        assert [entry.token for entry in found[4]] == [entry.token for entry in expected[4]]
        values = [[entry.logprob for entry in logprobs] for logprobs in (found[4], expected[4])]
        np.testing.assert_allclose(values[0], values[1], atol=1e-3)
        np.testing.assert_allclose(found[5], expected[5], atol=1e-2)


def test_two_engines_share_nothing(path: str, tmp_path: Path, engine: Engine) -> None:
    other_path = write_tiny_llama(tmp_path / "other.gguf", seed=9, n_head_kv=1).path
    with open_engine(other_path) as other:
        expected = engine.logits([1, 2, 3]), other.logits([1, 2, 3])
        streams = engine.stream([1], LONG), other.stream([1], LONG)
        for _ in range(5):
            assert all(next(stream).tokens for stream in streams)
        for stream in streams:
            stream.close()
        with ThreadPoolExecutor(2) as pool:
            for _ in range(5):
                found = pool.map(lambda e: e.logits([1, 2, 3]), (engine, other), timeout=PATIENCE)
                for a, b in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(a, b)
    assert engine.generate([1], SHORT).tokens


# -- processes ---------------------------------------------------------------------------------------------------------

PREAMBLE = f"""
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from ollama_engine import Engine, SamplingParams
LONG = SamplingParams(logit_bias={{318: float("-inf"), 319: float("-inf")}}, seed=1)
SHORT = SamplingParams(max_tokens=4, seed=1)
def quietly(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError as error:
        assert "closed" in str(error)
engine = Engine(sys.argv[1], num_ctx={NUM_CTX}, parallel=1, threads=2)
"""


def run_script(path: str, script: str) -> str:
    """Run in a process of its own, which must end well and say nothing on stderr."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PREAMBLE + script, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


EXITS = {
    "idle": "",
    "streaming": "s = engine.stream([1], LONG); next(s)",
    "a stream alone": "s = engine.stream([1], LONG); next(s); del engine",
    "a dropped stream": "s = engine.stream([1], LONG); del s",
    "scoring": "threading.Thread(target=quietly, args=(engine.logits, [1] * 8000), daemon=True).start()",
    "threads": "threads = [threading.Thread(target=quietly, args=(engine.generate, [1], LONG), daemon=True)"
    " for _ in range(3)]; [thread.start() for thread in threads]",
    "a cycle": "engine.cycle = engine; s = engine.stream([1], LONG); engine.s = s; next(s)",
    "closed": "engine.generate([1], SHORT); engine.close()",
    "three engines": "e = [Engine(sys.argv[1], num_ctx=64) for _ in range(3)]; [next(x.stream([1], LONG)) for x in e]",
}


@pytest.mark.parametrize(
    "script", slow_except(EXITS.values(), "streaming", "a stream alone", "threads", "closed", ids=EXITS)
)
def test_the_interpreter_exits_at_any_moment(path: str, script: str) -> None:
    run_script(path, script)


def test_ctrl_c_ends_a_call_and_the_engine_goes_on(path: str) -> None:
    script = """
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

for call in (lambda: engine.generate([1], LONG, on_overflow="shift"), lambda: engine.logits([1] * 8000)):
    timer = threading.Timer(0.05, interrupt)
    try:
        timer.start()
        while True:
            call()
    except KeyboardInterrupt:
        print("interrupted", len(engine.generate([1], SHORT).tokens))
"""
    assert run_script(path, script).split("\n") == ["interrupted 4", "interrupted 4", ""]


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system has no fork")
@pytest.mark.parametrize("running", slow_except([False, True], True))
def test_a_forked_child_is_told_to_open_its_own(path: str, running: bool) -> None:
    script = f"""
stream = engine.stream([1], LONG) if {running} else None
if stream:
    next(stream)
child = os.fork()
if not child:
    for call in (engine.generate, engine.stream, engine.logits):
        try:
            call([1])
        except RuntimeError as error:
            assert "forked" in str(error), error
    engine.close()
    with Engine(sys.argv[1], num_ctx=64) as own:
        assert len(own.generate([1], SHORT).tokens) == 4
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
if stream:
    next(stream)
    stream.close()
print(len(engine.generate([1], SHORT).tokens))
"""
    assert run_script(path, script) == "4\n"


def test_importing_loads_no_backend_and_starts_no_thread() -> None:
    script = """
import sys, threading
import ollama_engine
assert "SamplingParams" in dir(ollama_engine)
loaded = {m for m in sys.modules if m.startswith("ollama_engine") or m == "numpy"}
assert loaded == {"ollama_engine", "ollama_engine.lazy"}, loaded
assert threading.active_count() == 1
maps = "/proc/self/maps"
import os
assert not os.path.exists(maps) or "libggml" not in open(maps).read()
ollama_engine.SamplingParams
assert not [m for m in sys.modules if m.startswith("ollama_engine.ml")]
assert threading.active_count() == 1
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
