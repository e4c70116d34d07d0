"""Models that sleep instead of being unloaded: a chat after keep_alive goes on, and nothing is left behind."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time

import pytest

from ollama_engine.errors import DeviceError, NoMemoryError
from ollama_engine.server.model_manager import manager as manager_module
from ollama_engine.server.model_manager.manager import ModelManager
from tests.server.model_manager.fakes import FakeLoader, manager, stored, until
from tests.server.model_manager.test_manager import run, use


def states(pool: ModelManager) -> list[str]:
    return [entry.state for entry in pool._entries.values()]


def test_a_model_sleeps_after_keep_alive_and_wakes_up_for_the_next_request() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, sleep=100.0)
        await use(pool, "a", keep_alive=0.01)
        await until(pool.sleeping)
        await until(lambda: pool.sleeping()[0].expires_at > time.time() + 50)
        assert (pool.loaded(), loader.slept, loader.closed) == ([], ["a"], [])
        assert not pool._taken()
        await use(pool, "a")
        assert (loader.loads, loader.woken, pool.sleeping()) == (["a"], ["a"], [])
        assert [row.model.stored.name for row in pool.loaded()] == ["a"]
        await pool.close()
        assert loader.closed == ["a"]

    run(test)


def test_models_that_share_the_memory_of_one_sleep_in_turn() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, free=15, sleep=100.0)
        for name in "abab":
            await use(pool, name)
        assert (loader.loads, loader.slept, loader.woken) == (["a", "b"], ["a", "b", "a"], ["a", "b"])
        assert loader.closed == []
        await pool.close()
        assert sorted(loader.closed) == ["a", "b"], "those that sleep are closed, too"

    run(test)


@pytest.mark.parametrize("asleep", [False, True])
def test_stopping_a_model_keeps_nothing_of_it(asleep: bool) -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, sleep=100.0)
        await use(pool, "a", keep_alive=0.01 if asleep else math.inf)
        if asleep:
            await until(lambda: states(pool) == ["sleeping"])
        assert await pool.unload(stored("a"))
        assert (loader.closed, pool.sleeping()) == (["a"], [])
        await use(pool, "b", keep_alive=0)
        await until(lambda: loader.closed == ["a", "b"])
        assert loader.slept == ["a"] * asleep
        await pool.close()

    run(test)


def test_stopping_a_sleeping_model_that_a_request_waits_for_closes_it_now() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, sleep=100.0)
        await use(pool, "a", keep_alive=0.01)
        await until(lambda: states(pool) == ["sleeping"])
        loader.gate.clear()
        others = [asyncio.create_task(use(pool, "b"))]
        await until(lambda: loader.loads == ["a", "b"])
        others.append(asyncio.create_task(use(pool, "a")))  # behind the load of b
        await asyncio.sleep(0)
        assert await asyncio.wait_for(pool.unload(stored("a")), 30)
        assert loader.closed == ["a"]
        loader.gate.set()
        await asyncio.gather(*others)
        assert (loader.loads, loader.woken) == (["a", "b", "a"], [])
        await pool.close()

    run(test)


def test_requests_that_come_while_a_model_falls_asleep_or_wakes_up_get_it() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, sleep=100.0)
        loader.bed.clear()
        await use(pool, "a", keep_alive=0.01)
        await until(lambda: loader.slept == ["a"])
        tasks = [asyncio.create_task(use(pool, "a")) for _ in range(3)]
        await asyncio.sleep(0)
        assert (loader.woken, [row.model.stored.name for row in pool.sleeping()]) == ([], ["a"])
        loader.bed.set()
        await until(lambda: loader.woken == ["a"])
        await asyncio.gather(*tasks, use(pool, "a"))
        assert (loader.loads, loader.slept, loader.woken) == (["a"], ["a"], ["a"])
        await pool.close()

    run(test)


def test_a_model_that_cannot_sleep_is_closed() -> None:
    async def test() -> None:
        loader = FakeLoader(sleepless=DeviceError("it is on a GPU"))
        pool = manager(loader, sleep=100.0)
        await use(pool, "a", keep_alive=0.01)
        await until(lambda: loader.closed == ["a"])
        await use(pool, "a")
        assert loader.loads == ["a", "a"]
        await pool.close()

    run(test)


def test_a_model_that_cannot_wake_up_is_loaded_anew() -> None:
    async def test() -> None:
        loader = FakeLoader(wakeless=NoMemoryError("others have it"))
        pool = manager(loader, sleep=100.0)
        await use(pool, "a", keep_alive=0.01)
        await until(pool.sleeping)
        await asyncio.gather(*(use(pool, "a") for _ in range(3)))
        assert (loader.loads, loader.woken, loader.closed) == (["a", "a"], ["a"], ["a"])
        await pool.close()

    run(test)


def test_a_process_that_ends_while_its_model_sleeps_is_forgotten() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, sleep=100.0)
        await use(pool, "a", keep_alive=0.01)
        await until(lambda: states(pool) == ["sleeping"])
        loader.deaths["a"].set()
        await until(lambda: not pool._entries)
        await use(pool, "a")
        assert (loader.loads, loader.woken) == (["a", "a"], [])
        await pool.close()

    run(test)


def test_few_sleep_and_none_for_longer_than_the_settings_say() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, sleep=100.0, max_loaded_models=1)
        for name in "abcde":
            await use(pool, name)
        assert {row.model.stored.name for row in pool.sleeping()} == {"b", "c", "d"}
        assert loader.closed == ["a"]
        await pool.close()
        brief = manager(loader := FakeLoader(), sleep=0.01)
        await use(brief, "a", keep_alive=0.01)
        await until(lambda: loader.closed == ["a"])
        assert loader.slept == ["a"]
        await brief.close()

    run(test)


def test_a_sleeping_model_is_closed_when_its_name_is_given_to_another() -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, sleep=100.0)
        await use(pool, "a", keep_alive=0.01)
        await until(lambda: states(pool) == ["sleeping"])
        async with pool.lease(dataclasses.replace(stored("a"), digest="pulled anew"), {}):
            await until(lambda: loader.closed == ["a"])
        await pool.close()

    run(test)


def test_a_sleeping_model_that_another_program_removes_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        loader, removed = FakeLoader(), {"b"}
        pool = manager(loader, sleep=100.0, removed=removed)
        await use(pool, "a", keep_alive=0.01)
        await use(pool, "b", keep_alive=0.01)
        await until(lambda: loader.closed == ["b"])
        await until(lambda: states(pool) == ["sleeping"])
        removed.add("a")
        await until(lambda: loader.closed == ["b", "a"])
        removed.add("c")
        await use(pool, "c", keep_alive=math.inf)
        await use(pool, "b", keep_alive=0.01)
        await until(lambda: loader.closed == ["b", "a", "b"])
        assert states(pool) == ["ready"], "one that is awake goes on"
        await pool.close()

    monkeypatch.setattr(manager_module, "LOOK_SECONDS", 0.01)
    run(test)


@pytest.mark.parametrize("state", ["loading", "waking", "falling asleep"])
def test_a_model_that_is_stopped_before_it_is_there_is_closed_behind_those_who_wait(state: str) -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, sleep=100.0)
        if state != "loading":
            await use(pool, "a", keep_alive=0.01)
            await until(lambda: states(pool) == ["sleeping"])
        loader.gate.clear()
        loader.bed.clear()
        if state == "falling asleep":
            loader.bed.set()
            await use(pool, "a", keep_alive=0.01)
            loader.bed.clear()
            await until(lambda: states(pool) == ["falling asleep"])
        waiting = [asyncio.create_task(use(pool, "a", keep_alive=math.inf)) for _ in range(2)]
        await until(lambda: states(pool) == [state])
        assert await pool.unload(stored("a"))
        loader.gate.set()
        loader.bed.set()
        await asyncio.gather(*waiting)
        await until(lambda: not pool._entries)
        assert sorted(loader.closed) == sorted(loader.loads)
        await use(pool, "a", keep_alive=math.inf)
        assert states(pool) == ["ready"]
        await pool.close()

    run(test)


@pytest.mark.parametrize("state", ["falling asleep", "waking"])
def test_a_shutdown_closes_what_falls_asleep_or_wakes_up(state: str) -> None:
    async def test() -> None:
        loader = FakeLoader()
        pool = manager(loader, sleep=100.0)
        if state == "falling asleep":
            loader.bed.clear()
        await use(pool, "a", keep_alive=0.01)
        before = "falling asleep" if state == "falling asleep" else "sleeping"
        await until(lambda: states(pool) == [before])
        loader.bed.clear()
        waiting = asyncio.create_task(use(pool, "a"))
        await until(lambda: states(pool) == [state])
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        loader.bed.set()
        await closing
        assert sorted(loader.closed) == sorted(loader.loads)
        assert not pool._entries
        await asyncio.gather(waiting, return_exceptions=True)

    run(test)
