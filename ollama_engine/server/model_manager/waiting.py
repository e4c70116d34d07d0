"""The manager's records: requests that wait, and models that are loaded, being loaded, or being unloaded."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ollama_engine.async_tasks import cancel_and_wait
from ollama_engine.server.model_manager.memory import mapped_bytes, taken_bytes
from ollama_engine.server.model_manager.planner import Bytes, ModelState, Need, Resident, Waiter
from ollama_engine.server.model_manager.runner_options import RunnerOptions

if TYPE_CHECKING:
    from ollama_engine.server.model_manager.loader import LoadedEngine
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["LoadCancelledError", "LoadProgressMeter", "LoadedModelEntry", "WaitingQueue", "WaitingRequest",
           "end_effects"]  # fmt: skip

log = logging.getLogger(__name__)

CLOSE_SECONDS = 20.0
"""How long a shutdown waits for loads and unloads: a model's process has 10 seconds to end, and is killed then."""


class LoadCancelledError(Exception):
    """Nobody waits for this load any more."""


class LoadProgressMeter:
    """How far a load is. Written from the thread that loads, read by the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.done = 0
        self.total = 0
        self.started_at = self.moved_at = clock()
        self.cancelled = False

    def __call__(self, done: int, total: int) -> None:
        """The loader's progress. Raises LoadCancelledError once the load is cancelled."""
        if self.cancelled:
            raise LoadCancelledError
        if (done, total) != (self.done, self.total):
            self.done, self.total, self.moved_at = done, total, self._clock()


@dataclass(eq=False)
class WaitingRequest:
    """A request that waits for a model: `granted` becomes the entry that it then holds."""

    number: int
    stored: StoredModel
    options: RunnerOptions
    keep_alive: float
    granted: asyncio.Future[LoadedModelEntry]
    need: Need | None = None

    def view(self) -> Waiter:
        """The planner's view of it."""
        return Waiter(self.number, self.stored.digest, self.options, self.need)


@dataclass(eq=False)
class LoadedModelEntry:
    """A model from the beginning of its load until it is closed."""

    number: int
    stored: StoredModel
    options: RunnerOptions
    need: Need
    keep_alive: float
    meter: LoadProgressMeter
    sleep_seconds: float = 0.0
    """How long it sleeps once it is unloaded; 0: it is closed then."""
    state: ModelState = "loading"
    loaded: LoadedEngine | None = None
    holds: int = 0
    last_used: float = 0.0
    expires_at: float = 0.0
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def idle(self) -> bool:
        """Whether nobody uses it, and nothing is done with it."""
        return self.state in ("ready", "sleeping") and not self.holds

    def view(self) -> Resident:
        """The planner's view of it."""
        memory = self.need.memory if self.loaded is None else taken_bytes(self.loaded.memory)
        trained = None if self.loaded is None else self.loaded.model.facts.context_length
        return Resident(
            self.number, self.stored.digest, self.state, self.options, trained, self.holds, self.last_used,
            self.expires_at, memory, self.keep_alive > 0 and self.sleep_seconds > 0,
        )  # fmt: skip

    def mapped(self) -> Bytes:
        """Bytes of its file that are mapped, and not given back."""
        return {} if self.loaded is None or self.state == "sleeping" else mapped_bytes(self.loaded.memory)

    def used(self, now: float) -> None:
        """A request came or ended."""
        self.last_used = now
        self.expires_at = now + self.keep_alive

    def slept(self, now: float) -> None:
        """It sleeps now; `keep_alive` is 0 where it was to be closed meanwhile."""
        self.state = "sleeping"
        self.expires_at = now + self.sleep_seconds if self.keep_alive > 0 else -math.inf

    def expire(self) -> None:
        """Have it closed as soon as nobody uses it."""
        self.keep_alive = 0.0
        if self.idle:
            self.expires_at = -math.inf


class WaitingQueue:
    """Requests that wait, in the order of their arrival."""

    def __init__(self) -> None:
        self._by_number: dict[int, WaitingRequest] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._by_number.values())

    def __getitem__(self, number: int) -> WaitingRequest:
        return self._by_number[number]

    def add(self, waiting: WaitingRequest) -> None:
        """At the end."""
        self._by_number[waiting.number] = waiting

    def take(self, number: int) -> WaitingRequest | None:
        """Remove a request; None where it waits no more."""
        return self._by_number.pop(number, None)

    def wanting(self, entry: LoadedModelEntry) -> list[WaitingRequest]:
        """Those whom this model serves once it is loaded."""
        digest, options = entry.stored.digest, entry.options
        return [waiting for waiting in self if waiting.stored.digest == digest and waiting.options.fits(options)]

    def alike(self, other: WaitingRequest) -> list[WaitingRequest]:
        """Those for the same model with the same options."""
        wanted = (other.stored.digest, other.options)
        return [waiting for waiting in self if (waiting.stored.digest, waiting.options) == wanted]

    def fail(self, failed: Iterable[WaitingRequest], error_of: Callable[[StoredModel], Exception]) -> None:
        """End these requests, each with an error of its own: several tasks raise them."""
        for waiting in list(failed):
            self.take(waiting.number)
            if not waiting.granted.done():
                waiting.granted.set_exception(error_of(waiting.stored))


async def end_effects(tasks: Collection[asyncio.Task[None]], entries: Iterable[LoadedModelEntry]) -> None:
    """Wait for loads and unloads, but not for ever for one that a dead disk, device or logits processor holds up."""
    end = asyncio.get_running_loop().time() + CLOSE_SECONDS
    while tasks and (left := end - asyncio.get_running_loop().time()) > 0:
        await asyncio.wait(tasks, timeout=left)
    for entry in entries:
        state = "loaded" if entry.loaded is None else "unloaded"
        log.error("%s is still being %s after %g s; nobody waits for that any more", entry.stored.name, state,
                  CLOSE_SECONDS)  # fmt: skip
    await cancel_and_wait(*tasks)
