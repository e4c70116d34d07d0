"""ModelManager: who keeps which models loaded. It does what the planner says, on the server's event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ollama_engine.errors import ClosedError, EngineBusyError
from ollama_engine.server.errors import BUSY
from ollama_engine.server.managing import KeepAlive, LoadedModel, LoadingModel, ModelLease
from ollama_engine.server.model_manager.effects import ModelEffects
from ollama_engine.server.model_manager.failures import load_error
from ollama_engine.server.model_manager.loader import Loader
from ollama_engine.server.model_manager.memory import SLEEPERS, default_models, free_memory
from ollama_engine.server.model_manager.planner import Bytes, LoadPlan, ModelLimits, ModelState, plan
from ollama_engine.server.model_manager.runner_options import RunnerOptions
from ollama_engine.server.model_manager.waiting import LoadedModelEntry, WaitingQueue, WaitingRequest

if TYPE_CHECKING:
    from ollama_engine.server.settings import ServerSettings
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["ModelManager"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""How often the store is asked whether sleeping models are still there: other programs remove some, too."""


class ModelManager:
    """`ManagesModels` over a loader. All methods are called on one event loop, which alone changes its state."""

    def __init__(
        self,
        settings: ServerSettings,
        loader: Loader,
        *,
        removed: Callable[[StoredModel], bool] = lambda stored: False,
        free: Callable[[Iterable[Bytes]], Bytes] = free_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._loader = loader
        self._removed = removed
        self._free = free
        self._clock = clock
        self._numbers = itertools.count(1)
        self._waiting = WaitingQueue()
        self._effects = ModelEffects(settings, loader, self._waiting, clock, self._advance)
        self._entries = self._effects.entries
        self._measuring = False
        self._looks_at = -math.inf
        """When it next asks which sleeping models are still there."""
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
        return self._rows("ready")

    def sleeping(self) -> list[LoadedModel]:
        return self._rows("falling asleep", "sleeping", "waking")

    def _rows(self, *states: ModelState) -> list[LoadedModel]:
        offset = time.time() - self._clock()
        rows = [
            LoadedModel(entry.loaded.model, entry.expires_at + offset, entry.holds)
            for entry in self._entries.values()
            if entry.loaded is not None and entry.state in states
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
        for waiting in self._waiting:
            if waiting.stored.digest == stored.digest:
                waiting.keep_alive = 0.0  # it gets its answer; the model is closed behind that
        entries = [entry for entry in self._entries.values() if entry.stored.digest == stored.digest]
        for entry in entries:
            entry.expire()
        closing = [entry.gone.wait() for entry in entries if entry.idle]
        self._advance()
        await asyncio.gather(*closing)
        return bool(entries)

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.fail(self._waiting, lambda _: ClosedError("the server is shutting down"))
        await self._effects.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _seconds(self, keep_alive: KeepAlive) -> float:
        return self._settings.keep_alive if keep_alive is None else keep_alive

    async def _hold(self, stored: StoredModel, options: RunnerOptions, keep_alive: float) -> LoadedModelEntry:
        """Wait for a model.

        A caller that is cancelled meanwhile holds nothing, and ends a load that no other caller wants.
        """
        if self._closed:
            raise ClosedError("the server is shutting down")
        self._forget_replaced(stored)
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

    def _forget_replaced(self, stored: StoredModel) -> None:
        """Have a sleeping model closed whose name is another model's now: nobody will wake it up."""
        for entry in self._entries.values():
            replaced = entry.stored.name == stored.name and entry.stored.digest != stored.digest
            if replaced and entry.state == "sleeping":
                entry.expire()

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
        asleep = {resident.key: resident.state == "sleeping" for resident in residents}
        # Asking the system takes longer than all else here, and only loads and wakings need to know.
        needed = any(asleep.get(waiter.key, waiter.need is not None) for waiter in waiters)
        free = self._free([entry.mapped() for entry in self._entries.values()]) if needed else {}
        return plan(residents, waiters, ModelLimits(self._models, free, SLEEPERS), self._clock())

    def _advance(self) -> None:
        """Do what is to be done now. Called whenever something has changed."""
        if not self._closed:
            self._forget_broken()
            self._look_for_removed()
            self._do(self._plan())
            self._set_timer()

    def _forget_broken(self) -> None:
        """Have models that have ended by themselves loaded anew by the next request."""
        for entry in self._entries.values():
            if entry.state in ("ready", "sleeping") and entry.loaded is not None and entry.loaded.over():
                log.error("%s has ended by itself; the next request loads it again", entry.stored.name)
                self._effects.unload(entry)

    def _look_for_removed(self) -> None:
        """Now and then, have sleeping models closed that are not in the store any more."""
        asleep = [entry for entry in self._entries.values() if entry.state == "sleeping"]
        if asleep and self._clock() >= self._looks_at:
            self._looks_at = self._clock() + LOOK_SECONDS
            self._effects.start(self._expire_removed(asleep))

    async def _expire_removed(self, asleep: Iterable[LoadedModelEntry]) -> None:
        for entry in asleep:
            if await asyncio.to_thread(self._removed, entry.stored):
                entry.expire()
        self._advance()

    def _do(self, steps: LoadPlan) -> None:
        for grant in steps.grants:
            waiting, entry = self._waiting.take(grant.waiter), self._entries[grant.resident]
            if waiting is None or waiting.granted.done():  # its caller has gone, and comes here next
                continue
            entry.holds += 1
            entry.keep_alive = waiting.keep_alive
            entry.used(self._clock())
            waiting.granted.set_result(entry)
        for number in steps.sleep:
            self._effects.sleep(self._entries[number])
        for number in steps.unload:
            self._effects.unload(self._entries[number])
        if steps.measure is not None and not self._measuring:
            self._measuring = True
            self._effects.start(self._measure(self._waiting[steps.measure]))
        if steps.wake is not None:
            self._effects.wake(self._entries[steps.wake])
        if steps.load is not None:
            self._effects.load(self._waiting[steps.load])

    def _set_timer(self) -> None:
        """Come back when the next model is to be unloaded, or closed, or looked for."""
        if self._timer is not None:
            self._timer.cancel()
        soonest = min((entry.expires_at for entry in self._entries.values() if entry.idle), default=math.inf)
        if any(entry.state == "sleeping" for entry in self._entries.values()):
            soonest = min(soonest, self._looks_at)
        self._timer = None
        if soonest < math.inf:
            delay = min(max(0.0, soonest - self._clock()), 86400.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._advance)

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
            if entry.state != "sleeping":
                taken.update(entry.view().memory)
        return taken
