"""ModelManager: who keeps which models loaded. It does what the planner says, on the server's event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ollama_engine.errors import ClosedError, EngineBusyError, NoMemoryError
from ollama_engine.server.errors import BUSY
from ollama_engine.server.managing import KeepAlive, LoadedModel, LoadingModel, ModelLease
from ollama_engine.server.model_manager.failures import load_error, stalled_error
from ollama_engine.server.model_manager.loader import LoadedEngine, Loader
from ollama_engine.server.model_manager.memory import default_models, free_memory
from ollama_engine.server.model_manager.planner import Bytes, LoadPlan, ModelLimits, plan
from ollama_engine.server.model_manager.runner_options import RunnerOptions
from ollama_engine.server.model_manager.waiting import (
    LoadCancelledError,
    LoadedModelEntry,
    LoadProgressMeter,
    WaitingQueue,
    WaitingRequest,
    end_effects,
)

if TYPE_CHECKING:
    from ollama_engine.server.settings import ServerSettings
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["ModelManager"]

log = logging.getLogger(__name__)


class ModelManager:
    """`ManagesModels` over a loader. All methods are called on one event loop, which alone changes its state."""

    def __init__(
        self,
        settings: ServerSettings,
        loader: Loader,
        *,
        free: Callable[[Iterable[Bytes]], Bytes] = free_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._loader = loader
        self._free = free
        self._clock = clock
        self._numbers = itertools.count(1)
        self._waiting = WaitingQueue()
        self._entries: dict[int, LoadedModelEntry] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._measuring = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._models = settings.max_loaded_models or default_models()

    # -- what requests call --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(
        self, stored: StoredModel, options: Mapping[str, Any], keep_alive: KeepAlive = None
    ) -> AsyncIterator[ModelLease]:
        began = self._clock()
        entry = await self._hold(stored, RunnerOptions.of(stored.parameters, options), self._seconds(keep_alive))
        try:
            assert entry.loaded is not None
            yield ModelLease(entry.loaded.model, self._clock() - began)
        finally:
            self._release(entry)

    def loaded(self) -> list[LoadedModel]:
        offset = time.time() - self._clock()
        rows = [
            LoadedModel(entry.loaded.model, entry.expires_at + offset, entry.holds)
            for entry in self._entries.values()
            if entry.loaded is not None and entry.state == "ready"
        ]
        return sorted(rows, key=lambda row: -row.expires_at)

    def loading(self) -> list[LoadingModel]:
        now = self._clock()
        return [
            LoadingModel(entry.stored, entry.meter.done, entry.meter.total, now - entry.meter.started_at)
            for entry in self._entries.values()
            if entry.state == "loading"
        ]

    async def unload(self, stored: StoredModel) -> bool:
        entry = next((e for e in self._entries.values() if e.stored.digest == stored.digest), None)
        if entry is None:
            return False
        entry.keep_alive = 0.0
        if entry.state == "ready" and not entry.holds:
            entry.expires_at = -math.inf
            self._advance()
            await entry.gone.wait()
        return True

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.fail(self._waiting, lambda _: ClosedError("the server is shutting down"))
        for entry in self._entries.values():
            entry.meter.cancelled = True
            if entry.state == "ready":
                self._unload(entry)
        await end_effects(self._tasks, self._entries.values())

    # -- requests ------------------------------------------------------------------------------------------------------

    def _seconds(self, keep_alive: KeepAlive) -> float:
        return self._settings.keep_alive if keep_alive is None else keep_alive

    async def _hold(self, stored: StoredModel, options: RunnerOptions, keep_alive: float) -> LoadedModelEntry:
        """Wait for a model.

        A caller that is cancelled meanwhile holds nothing, and ends a load that no other caller wants.
        """
        if self._closed:
            raise ClosedError("the server is shutting down")
        granted: asyncio.Future[LoadedModelEntry] = asyncio.get_running_loop().create_future()
        waiting = WaitingRequest(next(self._numbers), stored, options, keep_alive, granted)
        self._refuse_if_busy(waiting)
        self._waiting.add(waiting)
        self._advance()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self._release(granted.result())
            raise
        finally:
            if self._waiting.take(waiting.number) is not None:
                self._end_unwanted_load()
                self._advance()

    def _refuse_if_busy(self, waiting: WaitingRequest) -> None:
        """Raise EngineBusyError where the queue is full, unless the model is there. A queue of 0 lets one load."""
        full = len(self._waiting) >= max(1, self._settings.max_queue)
        if full and all(grant.waiter != waiting.number for grant in self._plan(waiting).grants):
            raise EngineBusyError(BUSY)

    def _release(self, entry: LoadedModelEntry) -> None:
        entry.holds -= 1
        entry.used(self._clock())
        self._advance()

    def _end_unwanted_load(self) -> None:
        for entry in self._entries.values():
            if entry.state == "loading" and not self._waiting.wanting(entry):
                entry.meter.cancelled = True

    # -- the plan ------------------------------------------------------------------------------------------------------

    def _plan(self, *further: WaitingRequest) -> LoadPlan:
        """The plan for all who wait, and for these behind them."""
        waiters = [waiting.view() for waiting in (*self._waiting, *further)]
        residents = [entry.view() for entry in self._entries.values()]
        there = {resident.key for resident in residents}
        # Asking the system takes longer than all else here, and only loads need to know.
        loads = any(waiter.need is not None and waiter.key not in there for waiter in waiters)
        free = self._free([entry.mapped() for entry in self._entries.values()]) if loads else {}
        return plan(residents, waiters, ModelLimits(self._models, free), self._clock())

    def _advance(self) -> None:
        """Do what is to be done now. Called whenever something has changed."""
        if not self._closed:
            self._forget_broken()
            self._do(self._plan())
            self._set_timer()

    def _forget_broken(self) -> None:
        """Have models that have ended by themselves loaded anew by the next request."""
        for entry in self._entries.values():
            if entry.state == "ready" and entry.loaded is not None and entry.loaded.over():
                log.error("%s has ended by itself; the next request loads it again", entry.stored.name)
                self._unload(entry)

    def _do(self, steps: LoadPlan) -> None:
        for grant in steps.grants:
            waiting, entry = self._waiting.take(grant.waiter), self._entries[grant.resident]
            if waiting is None or waiting.granted.done():  # its caller has gone, and comes here next
                continue
            entry.holds += 1
            entry.keep_alive = waiting.keep_alive
            entry.used(self._clock())
            waiting.granted.set_result(entry)
        for number in steps.unload:
            self._unload(self._entries[number])
        if steps.measure is not None and not self._measuring:
            self._measuring = True
            self._start(self._measure(self._waiting[steps.measure]))
        if steps.load is not None:
            self._load(self._waiting[steps.load])

    def _set_timer(self) -> None:
        """Come back when the next model expires."""
        if self._timer is not None:
            self._timer.cancel()
        idle = [e.expires_at for e in self._entries.values() if e.state == "ready" and not e.holds]
        soonest = min(idle, default=math.inf)
        self._timer = None
        if soonest < math.inf:
            delay = min(max(0.0, soonest - self._clock()), 86400.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._advance)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- effects -------------------------------------------------------------------------------------------------------

    async def _measure(self, waiting: WaitingRequest) -> None:
        need, failure = None, None
        try:
            need = await self._loader.measure(waiting.stored, waiting.options, self._taken())
        except Exception as error:  # whatever it is, the request gets it
            failure = error
        self._measuring = False
        alike = self._waiting.alike(waiting)
        for other in alike:
            other.need = need
        if failure is not None:
            self._waiting.fail(alike, lambda stored: load_error(stored, failure))
        self._advance()

    def _taken(self) -> Bytes:
        """Bytes of loaded models on each device: memory that a further one may have, since they can be unloaded."""
        taken: Counter[str] = Counter()
        for entry in self._entries.values():
            taken.update(entry.view().memory)
        return taken

    def _load(self, waiting: WaitingRequest) -> None:
        assert waiting.need is not None
        entry = LoadedModelEntry(
            next(self._numbers), waiting.stored, waiting.options, waiting.need, waiting.keep_alive,
            LoadProgressMeter(self._clock),
        )  # fmt: skip
        self._entries[entry.number] = entry
        self._start(self._loading(entry))

    async def _loading(self, entry: LoadedModelEntry) -> None:
        log.info("loading %s: about %d MiB", entry.stored.name, sum(entry.need.memory.values()) >> 20)
        watch = asyncio.get_running_loop().create_task(self._watch(entry))
        try:
            entry.loaded = await self._loader.load(entry.stored, entry.options, entry.meter)
        except Exception as error:  # whatever it is, the requests get it
            self._load_failed(entry, error)
            return
        finally:
            watch.cancel()
        if entry.meter.cancelled:  # too late for the loader to notice
            await self._close_entry(entry)
            return
        now = self._clock()
        facts = entry.loaded.model.facts
        log.info("loaded %s in %.2f s on %s", entry.stored.name, now - entry.meter.started_at, facts.system,
                 extra={"model": entry.stored.name, "devices": facts.devices})  # fmt: skip
        entry.state = "ready"
        entry.used(now)
        if entry.loaded.ended is not None:
            self._start(self._watch_life(entry, entry.loaded))
        self._advance()

    def _load_failed(self, entry: LoadedModelEntry, error: Exception) -> None:
        others = len(self._entries) > 1
        del self._entries[entry.number]
        entry.gone.set()
        if isinstance(error, LoadCancelledError):
            log.info("loading %s was given up: nobody waits for it", entry.stored.name)
        elif isinstance(error, NoMemoryError) and others and not entry.need.alone:
            log.info("%s does not fit beside other models; they are unloaded for it", entry.stored.name)
            for waiting in self._waiting.wanting(entry):
                waiting.need = replace(entry.need, alone=True)
        else:
            log.warning("loading %s failed: %s", entry.stored.name, error)
            self._waiting.fail(self._waiting.wanting(entry), lambda stored: load_error(stored, error))
        self._advance()

    async def _watch(self, entry: LoadedModelEntry) -> None:
        """Give up a load that makes no progress."""
        limit = self._settings.load_timeout
        while (left := entry.meter.moved_at + limit - self._clock()) > 0:
            await asyncio.sleep(min(left, 86400.0))
        log.error("loading %s made no progress for %g s and is given up", entry.stored.name, limit)
        entry.meter.cancelled = True
        stalled = stalled_error(limit)
        self._waiting.fail(self._waiting.wanting(entry), lambda stored: load_error(stored, stalled))
        entry.state = "unloading"
        self._advance()

    async def _watch_life(self, entry: LoadedModelEntry, loaded: LoadedEngine) -> None:
        """Notice at once that a model's process has ended by itself."""
        assert loaded.ended is not None
        ending = asyncio.ensure_future(loaded.ended())
        gone = asyncio.ensure_future(entry.gone.wait())
        await asyncio.wait((ending, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (ending, gone):
            task.cancel()
        self._advance()

    def _unload(self, entry: LoadedModelEntry) -> None:
        entry.state = "unloading"
        self._start(self._close_entry(entry))

    async def _close_entry(self, entry: LoadedModelEntry) -> None:
        entry.state = "unloading"
        assert entry.loaded is not None
        try:
            await entry.loaded.close()
        except Exception:  # its memory is gone as far as it can be; others go on
            log.exception("unloading %s failed", entry.stored.name)
        finally:
            self._entries.pop(entry.number, None)
            entry.gone.set()
            log.info("unloaded %s", entry.stored.name)
        self._advance()
