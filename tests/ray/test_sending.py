"""What a server sends to replicas, with replicas that are invented: requests that are cancelled, models, counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")

from ray.serve.request_router import RequestRouter

from ollama_engine.ray.replica_model import send
from ollama_engine.ray.replica_model_manager import ReplicaModelManager
from ollama_engine.ray.router import PrefixRouter
from ollama_engine.server.library import Library
from ollama_engine.store.model_store import ModelStore

pytestmark = pytest.mark.slow  # Ray takes seconds to import


class Answer:
    """Of a replica: it comes when `here` is set."""

    def __init__(self) -> None:
        self.here, self.asked, self.cancelled = asyncio.Event(), asyncio.Event(), False

    def cancel(self) -> None:
        self.cancelled = True

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        self.asked.set()
        yield from self.here.wait().__await__()
        return {"result": 1}


def engines(answer: Answer) -> Any:
    """A handle whose every method gives this answer."""
    return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_, **__: answer))


def test_a_call_that_is_cancelled_is_cancelled_in_the_replica() -> None:
    async def cancelled() -> bool:
        answer = Answer()
        task = asyncio.ensure_future(send(engines(answer), "call", chain=[]))
        await answer.asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return answer.cancelled

    async def answered() -> bool:
        answer = Answer()
        answer.here.set()
        assert await send(engines(answer), "call", chain=[]) == {"result": 1}
        return answer.cancelled

    assert asyncio.run(cancelled())
    assert not asyncio.run(answered())


class Loading(ReplicaModelManager):
    """Loads of it end when `loaded_now` is set."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(), 300.0)  # type: ignore[arg-type]
        self.began, self.loaded_now = asyncio.Semaphore(0), asyncio.Event()

    async def _load(self, *_: Any) -> Any:
        self.began.release()
        await self.loaded_now.wait()
        return SimpleNamespace()


def test_requests_that_wait_for_one_model_hold_one_entry(tmp_path: Path) -> None:
    """A request that still holds a model is counted, whichever came first."""
    stored = Library((), ModelStore(tmp_path)).find("demo")

    async def held() -> list[int]:
        manager = Loading()
        async with AsyncExitStack() as stack:
            leases = [asyncio.ensure_future(stack.enter_async_context(manager.lease(stored, {}))) for _ in range(3)]
            for _ in leases:
                await manager.began.acquire()
            manager.loaded_now.set()
            await asyncio.gather(*leases)
            before = [row.requests for row in manager.loaded()]
        return before + [row.requests for row in manager.loaded()]

    assert asyncio.run(held()) == [3, 0]


def test_a_request_that_could_not_be_sent_is_not_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its replica would seem to have less to do than nothing, and get more than its share from then on."""
    monkeypatch.setattr(RequestRouter, "on_send_request", lambda *_: None)
    router = PrefixRouter.__new__(PrefixRouter)
    router._sent = Counter()
    replica: Any = SimpleNamespace(unique_id="a")
    router.on_request_completed(replica, "not sent")
    router.on_send_request(replica)
    assert router._sent["a"] == 1
    router.on_request_completed(replica, "sent")
    assert router._sent["a"] == 0
