"""Processes of models that crash, are restarted, and end with their server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ollama_engine import demo
from ollama_engine.errors import ClosedError, LoadError, ModelFormatError, ModelProcessError
from ollama_engine.sample import SamplingParams
from ollama_engine.server.isolation.loader import ProcessLoader
from ollama_engine.server.isolation.model_process import ModelProcess, how_it_ended
from ollama_engine.server.isolation.remote_model import RemoteModel
from ollama_engine.server.library import Library
from ollama_engine.server.model_manager.making import make_manager
from ollama_engine.server.model_manager.manager import ModelManager
from ollama_engine.server.model_manager.runner_options import RunnerOptions
from ollama_engine.server.model_manager.waiting import LoadCancelledError
from ollama_engine.server.settings import ServerSettings
from tests.support.waiting import eventually

SMALL = {"num_ctx": 128, "num_batch": 32, "num_thread": 1}
ENDLESS = SamplingParams(max_tokens=10**6)


def run(test: Callable[[ModelManager], Awaitable[None]], **settings: object) -> None:
    async def within() -> None:
        pool = make_manager(ServerSettings(isolation="process", num_parallel=2, **settings))  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(test(pool), 200)
        finally:
            await pool.close()

    asyncio.run(within())


def process_of(model: object) -> int:
    assert isinstance(model, RemoteModel)
    return model.process.pid


async def answer(pool: ModelManager, name: str) -> tuple[int, str]:
    async with pool.lease(Library().find(name), SMALL) as held:
        stream = held.model.generate("Once upon a time", SamplingParams(max_tokens=5, temperature=0))
        return process_of(held.model), "".join([chunk.text async for chunk in stream])


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between opening and reading
        return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash_ends_its_own_requests_only(number: signal.Signals) -> None:
    async def test(pool: ModelManager) -> None:
        first, text = await answer(pool, "demo")
        other, other_text = await answer(pool, "demo-vision")
        async with pool.lease(Library().find("demo"), SMALL) as held:
            stream = held.model.generate("Once", ENDLESS, on_overflow="shift")
            await anext(aiter(stream))
            os.kill(first, number)
            with pytest.raises(
                ModelProcessError, match=f"the process of model 'demo:latest' was ended by {number.name}"
            ):
                async for _ in stream:
                    pass
            with pytest.raises(ModelProcessError):
                await held.model.tokenize("still there?")
        assert await answer(pool, "demo-vision") == (other, other_text)
        again, same = await answer(pool, "demo")
        assert again != first
        assert same == text

    run(test)


@pytest.mark.slow
def test_closing_ends_answers_and_leaves_no_process() -> None:
    pids = []

    async def test(pool: ModelManager) -> None:
        async with pool.lease(Library().find("demo"), SMALL) as held:
            stream = held.model.generate("Once", ENDLESS, on_overflow="shift")
            await anext(aiter(stream))
            pids.append(process_of(held.model))
            closing = asyncio.create_task(pool.close())
            with pytest.raises(ClosedError):
                async for _ in stream:
                    pass
            await closing

    run(test)
    assert not alive(pids[0])


def test_a_file_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(demo.path().read_bytes()[:-1000])

    async def test(pool: ModelManager) -> None:
        with pytest.raises(LoadError, match="model 'x:latest' could not be loaded") as caught:
            async with pool.lease(Library((("x", damaged),)).find("x"), SMALL):
                pass
        assert isinstance(caught.value.__cause__, ModelFormatError)

    run(test)


def test_a_load_that_is_given_up_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(model: Path, name: str) -> ModelProcess:
        started.append(ModelProcess(model, name))
        return started[0]

    monkeypatch.setattr("ollama_engine.server.isolation.loader.ModelProcess", start)

    async def load() -> None:
        def progress(done: int, total: int) -> None:
            raise LoadCancelledError

        with pytest.raises(LoadCancelledError):
            await ProcessLoader(ServerSettings()).load(Library().find("demo"), RunnerOptions.of(SMALL), progress)

    asyncio.run(load())
    assert not alive(started[0].pid)


SERVER = """
import asyncio, sys
from ollama_engine.server.library import Library
from ollama_engine.server.model_manager.making import make_manager
from ollama_engine.server.settings import ServerSettings

async def main():
    pool = make_manager(ServerSettings(isolation="process"))
    async with pool.lease(Library().find("demo"), {"num_ctx": 64, "num_thread": 1}) as held:
        print(held.model.process.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_process_does_not_outlive_its_server(stopped: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            child = int(server.stdout.readline())
            assert alive(child)
            if stopped:  # it cannot even notice that its input has ended
                os.kill(child, signal.SIGSTOP)
        finally:
            server.kill()
    eventually(lambda: not alive(child))


def test_how_processes_end() -> None:
    assert how_it_ended(-9) == "was ended by SIGKILL; the system may have run out of memory"
    assert how_it_ended(-11) == "was ended by SIGSEGV"
    assert how_it_ended(3) == "has ended with exit code 3"
    assert how_it_ended(None) == "does not answer"
