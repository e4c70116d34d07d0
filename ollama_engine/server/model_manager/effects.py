"""ModelEffects: loads models, has them sleep and wake up, and closes them, as the planner says: all that takes time."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ollama_engine.errors import NoMemoryError
from ollama_engine.server.model_manager.failures import load_error, stalled_error
from ollama_engine.server.model_manager.loader import LoadedEngine, Loader
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

__all__ = ["ModelEffects"]

log = logging.getLogger(__name__)


class ModelEffects:
    """Changes the states of models, and calls `advance` when one has changed. On the server's event loop."""

    def __init__(
        self, settings: ServerSettings, loader: Loader, waiting: WaitingQueue, clock: Callable[[], float],
        advance: Callable[[], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._loader = loader
        self._waiting = waiting
        self._clock = clock
        self._advance = advance
        self._numbers = itertools.count(1)
        self._closed = False
        self.tasks: set[asyncio.Task[None]] = set()
        self.entries: dict[int, LoadedModelEntry] = {}
        """All models that have memory, or sleep, by the numbers of their loads."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Have work done, for whose end `close` waits."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def close(self) -> None:
        """Close all models, those that sleep too."""
        self._closed = True
        for entry in list(self.entries.values()):
            entry.meter.cancelled = True
            if entry.state in ("ready", "sleeping"):
                self.unload(entry)
        await end_effects(self.tasks, self.entries.values())

    # -- loading -------------------------------------------------------------------------------------------------------

    def load(self, waiting: WaitingRequest) -> None:
        """Load the model of a request."""
        assert waiting.need is not None
        entry = LoadedModelEntry(
            next(self._numbers), waiting.stored, waiting.options, waiting.need, waiting.keep_alive,
            LoadProgressMeter(self._clock), self._settings.sleep,
        )  # fmt: skip
        self.entries[entry.number] = entry
        self.start(self._load(entry))

    async def _load(self, entry: LoadedModelEntry) -> None:
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
            await self._close(entry)
            return
        now = self._clock()
        facts = entry.loaded.model.facts
        log.info("loaded %s in %.2f s on %s", entry.stored.name, now - entry.meter.started_at, facts.system,
                 extra={"model": entry.stored.name, "devices": facts.devices})  # fmt: skip
        entry.state = "ready"
        entry.used(now)
        if entry.loaded.ended is not None:
            self.start(self._watch_life(entry, entry.loaded))
        self._advance()

    def _load_failed(self, entry: LoadedModelEntry, error: Exception) -> None:
        others = len(self.entries) > 1
        del self.entries[entry.number]
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

    # -- unloading -----------------------------------------------------------------------------------------------------

    def sleep(self, entry: LoadedModelEntry) -> None:
        """Have a model give its memory back and keep what it holds in a file. One that cannot do that is closed."""
        entry.state = "falling asleep"
        self.start(self._sleep(entry))

    async def _sleep(self, entry: LoadedModelEntry) -> None:
        assert entry.loaded is not None
        try:
            await entry.loaded.sleep()
        except Exception as error:  # it is on a GPU, say, or the disk is full
            log.info("%s is closed, because it cannot sleep: %s", entry.stored.name, error)
            await self._close(entry)
            return
        log.info("unloaded %s, which sleeps: its chats go on from a file", entry.stored.name)
        entry.slept(self._clock())
        await self._settle(entry)

    def wake(self, entry: LoadedModelEntry) -> None:
        """Have a sleeping model take its memory again. One that cannot do that is closed, and loaded anew."""
        entry.state = "waking"
        self.start(self._wake(entry))

    async def _wake(self, entry: LoadedModelEntry) -> None:
        assert entry.loaded is not None
        began = self._clock()
        try:
            await entry.loaded.wake()
        except Exception as error:  # too little memory; its file has changed; it has ended
            log.warning("%s cannot wake up, and is loaded anew where it is needed: %s", entry.stored.name, error)
            await self._close(entry)
            return
        log.info("%s woke up in %.2f s", entry.stored.name, self._clock() - began)
        entry.state = "ready"
        entry.used(self._clock())
        await self._settle(entry)

    async def _settle(self, entry: LoadedModelEntry) -> None:
        """Go on, or close a model that has woken up or fallen asleep while all are closed."""
        if self._closed:
            await self._close(entry)
        self._advance()

    def unload(self, entry: LoadedModelEntry) -> None:
        """Close a model; requests that still run end with ClosedError."""
        entry.state = "unloading"
        self.start(self._close(entry))

    async def _close(self, entry: LoadedModelEntry) -> None:
        entry.state = "unloading"
        assert entry.loaded is not None
        try:
            await entry.loaded.close()
        except Exception:  # its memory is gone as far as it can be; others go on
            log.exception("unloading %s failed", entry.stored.name)
        finally:
            self.entries.pop(entry.number, None)
            entry.gone.set()
            log.info("unloaded %s", entry.stored.name)
        self._advance()
