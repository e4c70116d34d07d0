"""The manager over a loader of names: who waits for what, and what is left of callers who go away."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ollama_engine.errors import ClosedError, ConfigError, EngineBusyError, LoadError, ModelFormatError, NoMemoryError
from ollama_engine.server.app import create_app
from ollama_engine.server.model_manager import loader as loading
from ollama_engine.server.model_manager import waiting
from ollama_engine.server.model_manager.failures import load_error
from ollama_engine.server.model_manager.manager import ModelManager
from ollama_engine.server.settings import ServerSettings
from tests.server.model_manager.fakes import FakeLoader, manager, stored, until
from tests.support.waiting import WAIT_SECONDS, ended


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(test(), 60)

    asyncio.run(within())


async def use(pool: ModelManager, name: str, options: dict[str, Any] | None = None, **lease: Any) -> None:
    async with pool.lease(stored(name), options or {}, **lease) as held:
        assert held.model.stored.name == name
        await asyncio.sleep(0)


def test_concurrent_requests_wait_for_one_load() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        loader.gate.clear()
        tasks = [asyncio.create_task(use(pool, "a")) for _ in range(5)]
        await until(lambda: loader.loads)
        (loading,) = pool.loading()
        assert (loading.stored.name, loading.total) == ("a", 10)
        loader.gate.set()
        await asyncio.gather(*tasks)
        assert (loader.loads, pool.loading()) == (["a"], [])
        assert [row.requests for row in pool.loaded()] == [0]
        await pool.close()
        assert loader.closed == ["a"]

    run(test)


def test_health_says_how_far_loads_are(tmp_path: Path) -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        loader.gate.clear()
        transport = httpx.ASGITransport(create_app(ServerSettings(models=tmp_path), manager=pool))
        task = asyncio.create_task(use(pool, "a"))
        await until(lambda: pool.loading() and pool.loading()[0].total)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            found = (await client.get("/health")).json()
            loader.gate.set()
            await task
            assert (await client.get("/health")).json() == {"status": "ok"}
        assert found["loading"][0].pop("seconds") >= 0
        assert found == {"status": "ok", "loading": [{"model": "a", "progress": 0.0}]}
        await pool.close()

    run(test)


def test_keep_alive_of_the_latest_request_decides() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, keep_alive=500.0)
        await use(pool, "a")
        assert pool.loaded()[0].expires_at == pytest.approx(time.time() + 500, abs=100)
        await use(pool, "a", keep_alive=math.inf)
        assert pool.loaded()[0].expires_at == math.inf
        await use(pool, "a", keep_alive=0.02)
        await until(lambda: loader.closed == ["a"])
        await use(pool, "a", keep_alive=0)
        await until(lambda: loader.closed == ["a", "a"])
        assert pool.loaded() == []

    run(test)


def test_the_least_recently_used_model_leaves() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, max_loaded_models=2)
        for name in "abac":
            await use(pool, name)
        assert loader.closed == ["b"]
        assert {row.model.stored.name for row in pool.loaded()} == {"a", "c"}
        await pool.close()

    run(test)


def test_models_leave_for_memory() -> None:
    async def test() -> None:
        loader = FakeLoader(size=10)
        pool = manager(loader, free=25, max_loaded_models=9)
        for name in "abc":
            await use(pool, name)
        assert loader.closed == ["a"]
        # Each is planned as if the others were not loaded: it may have their memory.
        assert [dict(taken) for taken in loader.taken] == [{}, {"CPU": 10}, {"CPU": 20}]
        await pool.close()

    run(test)


def test_a_model_in_use_is_not_unloaded() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, max_loaded_models=1)
        async with pool.lease(stored("a"), {}):
            other = asyncio.create_task(use(pool, "b"))
            await until(lambda: "b" in loader.measured)
            late = asyncio.create_task(use(pool, "a"))
            await asyncio.sleep(0.05)
            assert (loader.loads, loader.closed) == (["a"], [])
            assert not late.done(), "a later request for the same model waits for the earlier one"
        await asyncio.gather(other, late)
        assert loader.loads == ["a", "b", "a"]
        await pool.close()

    run(test)


def test_other_options_load_the_model_anew() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        await use(pool, "a", {"num_ctx": 100, "temperature": 1.0})
        await use(pool, "a", {"temperature": 0.5})
        await use(pool, "a", {"num_ctx": 100})
        assert loader.loads == ["a"]
        await use(pool, "a", {"num_ctx": 50})
        assert (loader.loads, loader.closed) == (["a", "a"], ["a"])
        assert [options.num_ctx for options in loader.options] == [100, 50]
        with pytest.raises(ConfigError, match="num_ctx must be of type integer"):
            await use(pool, "a", {"num_ctx": "many"})
        await pool.close()

    run(test)


def test_options_of_the_model_itself_stand_below_those_of_the_request() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        model = stored("a", parameters={"num_ctx": 64, "num_batch": 32})
        async with pool.lease(model, {"num_ctx": 128}):
            pass
        assert (loader.options[0].num_ctx, loader.options[0].num_batch) == (128, 32)
        await pool.close()

    run(test)


def test_a_failed_load_is_reported_to_all_who_wait_once_and_tried_again() -> None:
    async def test() -> None:
        loader = FakeLoader(failures=[ModelFormatError("it is damaged")])
        pool = manager(loader)
        loader.gate.clear()
        tasks = [asyncio.create_task(use(pool, "a")) for _ in range(3)]
        await until(lambda: loader.loads)
        loader.gate.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(error) for error in found] == ["model 'a' could not be loaded: it is damaged"] * 3
        assert len(set(map(id, found))) == 3
        assert all(isinstance(error, LoadError) and isinstance(error.__cause__, ModelFormatError) for error in found)
        assert loader.loads == ["a"]
        await use(pool, "a")
        assert loader.loads == ["a", "a"]
        await pool.close()

    run(test)


def test_a_model_that_is_deleted_while_it_loads_is_not_there() -> None:
    assert load_error(stored("a"), FileNotFoundError(2, "gone")).http_status == 404
    assert load_error(stored("a"), PermissionError(13, "not yours")).http_status == 500


def test_a_file_that_cannot_be_measured_is_not_loaded() -> None:
    async def test() -> None:
        loader = FakeLoader(broken=OSError("no such file"))
        pool = manager(loader)
        with pytest.raises(LoadError, match="no such file"):
            await use(pool, "a")
        loader.broken = None
        await use(pool, "a")
        await pool.close()

    run(test)


def test_a_load_that_finds_too_little_memory_gets_the_machine_alone() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        await use(pool, "a")
        loader.failures = [NoMemoryError("too large")]
        await use(pool, "b")
        assert (loader.loads, loader.closed) == (["a", "b", "b"], ["a"])
        loader.failures = [NoMemoryError("too large"), NoMemoryError("still too large")]
        with pytest.raises(LoadError, match="still too large"):
            await use(pool, "c")
        await pool.close()

    run(test)


def test_the_queue_has_a_limit() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, max_queue=2)
        await use(pool, "a")
        loader.gate.clear()
        tasks = [asyncio.create_task(use(pool, name)) for name in "bc"]
        await until(lambda: loader.loads == ["a", "b"])
        with pytest.raises(EngineBusyError, match=r"server busy, please try again\.  maximum pending requests exceed"):
            await use(pool, "d")
        await use(pool, "a")  # it is loaded, so nobody waits
        loader.gate.set()
        await asyncio.gather(*tasks)
        await pool.close()

    run(test)


def test_a_load_that_nobody_waits_for_is_given_up() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        loader.gate.clear()
        first, second = (asyncio.create_task(use(pool, "a")) for _ in range(2))
        await until(lambda: loader.loads)
        first.cancel()
        await asyncio.sleep(0.02)
        assert len(pool.loading()) == 1
        second.cancel()
        await until(lambda: not pool.loading())
        assert (pool.loaded(), len(pool._waiting), loader.closed) == ([], 0, [])
        await pool.close()

    run(test)


def test_a_load_without_progress_is_given_up() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, load_timeout=0.05)
        loader.gate.clear()
        with pytest.raises(LoadError, match=r"no progress for 0\.05 s"):
            await use(pool, "a")
        loader.gate.set()
        pool._effects._settings = dataclasses.replace(pool._settings, load_timeout=60.0)  # the loop may rest for 0.05 s
        await use(pool, "a")
        assert loader.loads == ["a", "a"]
        await pool.close()

    run(test)


def test_unload_waits_for_nobody_who_uses_the_model() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        assert not await pool.unload(stored("a"))
        async with pool.lease(stored("a"), {}):
            assert await pool.unload(stored("a"))
            assert loader.closed == []
        await until(lambda: loader.closed == ["a"])
        await use(pool, "a")
        assert await pool.unload(stored("a"))
        assert loader.closed == ["a", "a"], "an idle model has left when unload returns"

    run(test)


def test_a_model_whose_process_dies_is_loaded_anew() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        async with pool.lease(stored("a"), {}):
            loader.deaths["a"].set()
            await until(lambda: not pool.loaded())
            await use(pool, "a")
        assert loader.loads == ["a", "a"]
        assert [row.requests for row in pool.loaded()] == [0]
        await pool.close()

    run(test)


def test_close_ends_waiting_requests_and_loads() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        await use(pool, "a")
        loader.gate.clear()
        task = asyncio.create_task(use(pool, "b"))
        await until(pool.loading)
        await pool.close()
        with pytest.raises(ClosedError):
            await task
        with pytest.raises(ClosedError):
            await use(pool, "a")
        assert loader.closed == ["a"]

    run(test)


def test_callers_that_come_and_go_leave_no_trace() -> None:
    async def test() -> None:
        loader, rng = FakeLoader(), random.Random(3)
        pool = manager(loader, free=25, max_loaded_models=2, keep_alive=0.01)

        async def caller() -> None:
            await asyncio.sleep(rng.random() * 0.05)
            options = {"num_ctx": rng.choice([10, 20])} if rng.random() < 0.3 else {}
            async with pool.lease(stored(rng.choice("abc")), options):
                await asyncio.sleep(rng.random() * 0.01)

        tasks = [asyncio.create_task(caller()) for _ in range(200)]
        for task in rng.sample(tasks, 80):
            await asyncio.sleep(rng.random() * 0.002)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not [t for t in tasks if not t.cancelled() and t.exception() is not None]
        await until(lambda: not pool._entries)
        assert not pool._waiting
        assert sorted(loader.closed) <= sorted(loader.loads)
        await until(lambda: not pool._effects.tasks)

    run(test)


@pytest.mark.parametrize("stuck", ["load", "close"])
def test_a_shutdown_does_not_wait_for_what_is_stuck(
    stuck: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A load from a dead disk, an unload whose logits processor blocks: neither notices that it should end."""
    monkeypatch.setattr(waiting, "CLOSE_SECONDS", 0.1)

    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader)
        if stuck == "load":
            monkeypatch.setattr(loader, "load", lambda *_: asyncio.Event().wait())
            task = asyncio.create_task(use(pool, "a"))
            await until(pool.loading)
        else:
            await use(pool, "a")
            entry = next(iter(pool._entries.values()))
            assert entry.loaded is not None
            entry.loaded = dataclasses.replace(entry.loaded, close=asyncio.Event().wait)
            task = asyncio.create_task(asyncio.sleep(0))
        await pool.close()
        assert not pool._effects.tasks
        with contextlib.suppress(ClosedError):
            await task

    run(test)
    assert f"a is still being {'loaded' if stuck == 'load' else 'unloaded'} after 0.1 s" in caplog.text


def test_the_process_does_not_wait_for_a_load_that_is_stuck(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """asyncio waits for the threads of its executor when it ends: a load has a thread of its own."""
    monkeypatch.setattr(waiting, "CLOSE_SECONDS", 0.1)
    begun, may_end = threading.Event(), threading.Event()

    def measure(*_: object) -> None:
        begun.set()
        may_end.wait(WAIT_SECONDS * 2)

    monkeypatch.setattr(loading, "measure", measure)

    async def main() -> None:
        pool = ModelManager(ServerSettings(models=tmp_path), loading.LocalLoader(ServerSettings()))
        task = asyncio.create_task(use(pool, "a"))
        await asyncio.to_thread(begun.wait)
        await pool.close()
        with contextlib.suppress(ClosedError):
            await task

    try:
        assert ended(lambda: asyncio.run(main())) is None
    finally:
        may_end.set()
