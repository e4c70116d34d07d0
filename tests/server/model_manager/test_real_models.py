"""The manager with engines: the packaged models, loaded, used and unloaded."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from ollama_engine import Engine, demo
from ollama_engine.config import DEFAULT_NUM_CTX
from ollama_engine.sample import SamplingParams
from ollama_engine.server.app import create_app
from ollama_engine.server.library import Library
from ollama_engine.server.local_model import LocalModel
from ollama_engine.server.model_manager.loader import LocalLoader, engine_options
from ollama_engine.server.model_manager.making import make_manager
from ollama_engine.server.model_manager.manager import ModelManager
from ollama_engine.server.model_manager.runner_options import RunnerOptions
from ollama_engine.server.settings import ServerSettings
from tests.server.model_manager.fakes import until
from tests.support.tiny import write_tiny_llama

SMALL = {"num_ctx": 64, "num_batch": 32, "num_thread": 1}


async def answer(pool: ModelManager, name: str, **lease: float) -> str:
    async with pool.lease(Library().find(name), SMALL, **lease) as held:
        params = SamplingParams(max_tokens=6, temperature=0)
        return "".join([chunk.text async for chunk in held.model.generate("Once upon a time", params)])


def test_two_models_answer_as_their_engines_do() -> None:
    async def both() -> list[str]:
        pool = ModelManager(settings := ServerSettings(), LocalLoader(settings))
        try:
            return list(await asyncio.gather(answer(pool, "demo"), answer(pool, "demo"), answer(pool, "demo-vision")))
        finally:
            await pool.close()

    found = asyncio.run(both())
    params = SamplingParams(max_tokens=6, temperature=0)
    for text, path in zip(found, (demo.path(), demo.path(), demo.vision_path()), strict=True):
        with Engine(path, num_ctx=64, batch_size=32, threads=1) as engine:
            assert text == engine.generate("Once upon a time", params).text


@pytest.mark.parametrize(("num_ctx", "largest"), [(64, 128), (None, 2 * DEFAULT_NUM_CTX)])
def test_no_batch_is_larger_than_what_it_may_read(num_ctx: int | None, largest: int) -> None:
    """Its graph would take gigabytes: 9 of them where a request says the engine's largest, 65,536."""
    settings = ServerSettings(num_parallel=2)
    for asked_for, given in ((65_536, largest), (32, 32)):
        options = RunnerOptions(num_ctx=num_ctx, num_batch=asked_for)
        assert engine_options(Library().find("demo"), options, settings)["batch_size"] == given


def test_an_engine_that_closed_itself_is_loaded_anew() -> None:
    async def test() -> None:
        pool = ModelManager(settings := ServerSettings(), LocalLoader(settings))
        first = await answer(pool, "demo")
        (row,) = pool.loaded()
        assert isinstance(row.model, LocalModel)
        row.model.engine.close()  # as it does after a fault, or when its file has changed
        assert await answer(pool, "demo") == first
        await pool.close()

    asyncio.run(test())


def test_facts_of_a_loaded_model() -> None:
    async def facts() -> None:
        pool = ModelManager(settings := ServerSettings(num_parallel=2), LocalLoader(settings))
        async with pool.lease(Library().find("demo-vision"), {"num_ctx": 100_000}) as held:
            found = held.model.facts
        assert found.num_ctx == found.context_length  # no more than it was trained for
        assert found.parallel == 2
        assert {"completion", "vision"} <= found.capabilities
        assert found.memory_bytes > os.path.getsize(demo.vision_path())
        await pool.close()

    asyncio.run(facts())


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pages are given back on Linux only")
@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.slow)])
def test_a_chat_goes_on_after_keep_alive_without_its_prompt_being_computed_again(
    isolation: str, tmp_path: Path
) -> None:
    """The same bits, from what the model held; clients see it as unloaded, and its counters go on."""
    question: dict[str, Any] = {"model": "demo", "prompt": "Once there was a little fox who lived in a big wood.",
                                "options": SMALL | {"temperature": 0, "num_predict": 12}, "stream": False}  # fmt: skip

    async def chat(sleep: float) -> list[dict[str, Any]]:
        settings = ServerSettings(models=tmp_path, sleep=sleep, prefix_store="off", isolation=isolation)
        app = create_app(settings, manager=(pool := make_manager(settings)))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:

            async def ask(**changes: Any) -> dict[str, Any]:
                answer: dict[str, Any] = (await client.post("/api/generate", json=question | changes)).json()
                return answer

            async def counted(name: str) -> float:
                text = (await client.get("/metrics")).text
                found = re.search(rf'^ollama_engine_{name}{{model="demo.*"}} (.*)$', text, re.MULTILINE)
                return -1.0 if found is None else float(found[1])

            first = await ask(keep_alive="10ms")
            await until(lambda: [entry.state for entry in pool._entries.values()] == ["sleeping"] * bool(sleep))
            assert (await client.get("/api/ps")).json() == {"models": []}
            if sleep:
                assert [await counted(name) for name in ("sleeping", "sleeps_total")] == [1.0, 1.0]
                assert await counted("model_bytes") == -1.0, "the system has it"
            again = await ask(context=first["context"], prompt=" And", keep_alive=100)
            if sleep:
                assert await counted("cached_tokens_total") >= len(first["context"]) - 1
                assert await counted("wake_seconds_total") > 0
                assert await counted("sleeping") == 0.0
            await pool.close()
        return [first, again]

    slept, loaded_anew = asyncio.run(chat(100.0)), asyncio.run(chat(0.0))
    assert [answer["response"] for answer in slept] == [answer["response"] for answer in loaded_anew]


@pytest.mark.skipif(sys.platform != "linux", reason="experts are given back on Linux only")
@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.slow)])
def test_a_served_mixture_has_a_cache_of_experts(isolation: str, tmp_path: Path) -> None:
    """And one whose layers are larger than that is refused, while others are served."""
    path = tmp_path / "mixture.gguf"
    write_tiny_llama(path, n_ctx=64, n_embd=64, n_ff=96, n_layer=3, n_expert=8, n_expert_used=2, dtype="q8_0")

    async def asked(nbytes: int) -> tuple[int, str]:
        settings = ServerSettings(files=(("mixture", path),), prefix_store="off", isolation=isolation,
                                  expert_cache_bytes=nbytes)  # fmt: skip
        app = create_app(settings, manager=(pool := make_manager(settings)))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            question = {"model": "mixture", "prompt": "One day", "options": SMALL, "raw": True, "stream": False}
            answer = await client.post("/api/generate", json=question)
            metrics = (await client.get("/metrics")).text
            await pool.close()
        return answer.status_code, answer.text if answer.is_error else metrics

    status, metrics = asyncio.run(asked(1 << 20))
    uses = re.search(r"^ollama_engine_expert_uses_total{.*} (.*)$", metrics, re.MULTILINE)
    assert status == 200, metrics
    assert uses is not None
    assert float(uses[1]) > 0
    status, error = asyncio.run(asked(1000))
    assert status >= 400
    assert "the experts of a layer" in error


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pages are given back on Linux only")
def test_a_model_that_lost_what_it_held_is_loaded_anew(tmp_path: Path) -> None:
    async def test() -> None:
        pool = make_manager(ServerSettings(models=tmp_path, prefix_store="off"))
        first = await answer(pool, "demo", keep_alive=0.01)
        await until(lambda: [entry.state for entry in pool._entries.values()] == ["sleeping"])
        (row,) = pool.sleeping()
        assert isinstance(row.model, LocalModel)
        file = row.model.engine._memory._file
        assert file is not None
        os.ftruncate(file.fileno(), 1)
        assert await answer(pool, "demo") == first
        assert row.model.engine.closed
        await pool.close()

    asyncio.run(test())


@pytest.mark.slow
def test_memory_files_and_threads_return_after_unloading() -> None:
    """Load, answer and unload; what the first 40 cycles leave behind is what 20 more do.

    Each load has a thread of its own, and each of glibc's arenas (8 for each CPU) grows once.
    """

    def resident_bytes() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def used() -> tuple[int, int, int]:
        return resident_bytes(), len(os.listdir("/proc/self/fd")), threading.active_count()

    async def cycles() -> None:
        # One that is not idle yet when the next unload comes would make another one.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        pool = ModelManager(settings := ServerSettings(), LocalLoader(settings))
        for number in range(60):
            await answer(pool, "demo", keep_alive=0)
            while pool._entries:
                await asyncio.sleep(0.001)
            if number == 39:
                before = used()
        await until(lambda: all(now <= then for now, then in zip(used()[1:], before[1:], strict=True)))
        assert resident_bytes() - before[0] < 8 << 20  # one load takes more than that
        await pool.close()

    asyncio.run(cycles())
