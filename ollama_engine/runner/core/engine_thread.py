"""EngineThread: the thread that owns the core. Callers put work into its inbox and wait elsewhere, on their channel."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from ollama_engine.errors import ClosedError, ComputeError, DeviceLostError, EngineBusyError, NoMemoryError, Option
from ollama_engine.ml.gguf.mapped_files import MappedFiles
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.not_copied import check_process
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.request_queue import SWEEP_SECONDS
from ollama_engine.runner.core.sleeping import Sleep, Sleeper
from ollama_engine.runner.core.stuck_thread import outside_stack
from ollama_engine.runner.core.task import Task
from ollama_engine.runner.load.sleeping import ModelMemory
from ollama_engine.runner.observe.monitor import Monitor, report
from ollama_engine.runner.schedule.queued import QueuedRequest

__all__ = ["EngineThread"]

log = logging.getLogger(__name__)


CLOSE_SECONDS = 5.0
"""How long closing waits for the current step, where that waits for a worker."""
FLUSH_SECONDS = 10.0
"""How long closing waits for prefixes that are still to be stored."""
STUCK_SECONDS = 10.0
"""How long closing waits for code outside of the engine that its thread runs, such as a logits processor."""
LOOK_SECONDS = 1.0
"""How often an idle engine looks whether its devices are still there."""


class _Owner(weakref.ref[object]):
    """Put into the inbox when the owner has been garbage collected; the engine then closes."""

    __slots__ = ()


Work = tuple[QueuedRequest, ...] | Task[EngineCore]
"""Requests of one call, or a task."""
Parcel = list[Work]
"""A list with the work in it. `list.pop` gives the work to one thread only, and that thread reports how it ended."""


class EngineThread:
    """Steps the core on a thread of its own while there is work, until closed; `on_exit` runs there, as the last thing.

    It closes by itself when `owner` is collected. Objects are collected in any thread and at any point of it. So the
    callbacks of weak references take no lock and run no Python code, in which an interrupt would be swallowed. The
    callback is `SimpleQueue.put`, which is reentrant.
    """

    def __init__(
        self, core: EngineCore, max_queue: int, name: str, on_exit: Callable[[], None], owner: object = None,
        files: MappedFiles | None = None, workers: Backend | None = None, memory: ModelMemory | None = None,
    ) -> None:  # fmt: skip
        # -- collaborators --
        self._core = core
        self._sleeper = Sleeper(core, memory)
        self._on_exit = on_exit
        self._files = MappedFiles() if files is None else files
        self._workers = workers
        # -- configuration --
        self._max_queue = max_queue
        # -- state --
        self._inbox: SimpleQueue[Parcel | Task[EngineCore] | _Owner | None] = SimpleQueue()
        """Parcels; tasks that are weak references; the owner or None, at which the engine closes."""
        # Reentrant: a finaliser that runs in the middle of `submit` may call `submit`, too.
        self._counting = threading.RLock()
        self._calls = 0
        self._handed_in: deque[tuple[QueuedRequest, ...]] = deque()
        """Calls that the core has not taken yet. An interrupted `submit` leaves a cancelled entry here."""
        self._taken_in = 0
        self._closed = False
        self._ended = False
        self._fault: BaseException | None = None
        # -- thread --
        self.pid = os.getpid()
        self._owner = None if owner is None else _Owner(owner, self.drop)
        self._thread = threading.Thread(target=self._serve, name=f"ollama_engine {name}", daemon=True)
        self._serving = threading.Lock()

    def start(self) -> None:
        """Begin to serve. Raises NoMemoryError when the system gives no thread; `on_exit` has run then."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._on_exit()
            raise NoMemoryError(
                f"no thread for the engine: {error}; let the process have more address space or threads (ulimit -v, -u)"
            ) from error
        # At exit the interpreter waits for the computation, instead of ending under it.
        atexit.register(self.close)

    # -- from any thread -----------------------------------------------------------------------------------------------

    def submit(self, *requests: QueuedRequest) -> None:
        """Queue requests. All requests of one call count as one, so that a long list is not refused for its length.

        Raises EngineBusyError when `max_queue` calls of any kind wait already, ClosedError, and ComputeError on the
        engine's own thread, which would wait for itself.
        """
        self.check_open()
        with self._counting:
            if self._is_full():
                self._core.monitor.metrics.ended(requests[0].kind, "rejected")
                raise EngineBusyError(
                    Option("max_queue"), f" is {self._max_queue}, and as many requests wait; try again later"
                )
            number = max(self._calls, self._taken_in) + 1
            for request in requests:
                request.call = number
            self._handed_in.append(requests)
            self._put(requests)
            # Last: an interrupted submission must not be counted, or it would occupy a place in the queue for ever.
            self._calls = number

    @property
    def coming(self) -> int:
        """Number of submissions that the core has not taken yet."""
        return max(0, self._calls - self._taken_in)

    def _is_full(self) -> bool:
        """Whether `max_queue` calls wait, without those that were cancelled before the core took them."""
        queue = self._core.queue
        if not queue.is_full(self._max_queue - self.coming):
            return False
        wanted = sum(any(not request.channel.unwanted for request in call) for call in list(self._handed_in))
        return queue.is_full(self._max_queue - wanted)

    @property
    def monitor(self) -> Monitor:
        """Metrics and timeline; any thread may read them."""
        return self._core.monitor

    @property
    def drop(self) -> Callable[[Any], None]:
        """The callback for weak references that are tasks: the task runs when the object is collected."""
        return self._inbox.put

    def do(self, task: Task[EngineCore]) -> None:
        """Queue a task. Raises ClosedError and ComputeError as `submit` does."""
        self.check_open()
        self._put(task)

    def post(self, task: Task[EngineCore]) -> None:
        """Queue a task, unless the engine is closed. Takes no lock and raises nothing: for finalisers."""
        if self.pid == os.getpid():
            self._put(task)

    @property
    def closed(self) -> bool:
        """Whether it was told to end, or ended by itself."""
        return self._closed

    def check_open(self) -> None:
        """Raise ClosedError or ComputeError where `submit` would."""
        check_process(self.pid)
        if self._closed:
            raise self._reason("this Engine is closed")
        if threading.current_thread() is self._thread:
            raise ComputeError("the Engine is computing in this thread; a log handler or finaliser must not use it")

    def close(self, *, wait: bool = True) -> None:
        """End all requests after the current step, and join the thread. Safe to call twice.

        From the engine's own thread, or without `wait`, this happens as soon as the current step has ended. So it does
        where code outside of the engine keeps the thread for STUCK_SECONDS; the log has its stack then.
        """
        if self.pid != os.getpid():
            return  # a fork has no such thread
        self._closed = True
        self._inbox.put(None)
        if wait and threading.current_thread() is not self._thread:
            if self._workers is not None:
                if self._serving.acquire(timeout=CLOSE_SECONDS):
                    self._serving.release()
                else:
                    self._workers.give_up_devices()
            # Last, because an interrupted Thread.join treats a running thread as ended (bpo-45274).
            if self._has_ended():
                self._thread.join()

    def _has_ended(self) -> bool:
        """Wait until the thread serves nothing any more; False where it is stuck outside of the engine."""
        outside_since = None
        while not self._serving.acquire(timeout=min(LOOK_SECONDS, STUCK_SECONDS)):
            stack, now = outside_stack(self._thread), time.monotonic()
            outside_since = (outside_since or now) if stack else None
            if outside_since is not None and now - outside_since >= STUCK_SECONDS:
                report(log, logging.WARNING, "close() waits no longer for the engine's thread, which frees the model "
                       "once it returns from here:\n%s", stack)  # fmt: skip
                return False
        self._serving.release()
        return True

    def _put(self, work: Work) -> None:
        late = self._ended
        if late:
            self._refuse(work)
            return
        parcel = [work]
        self._inbox.put(parcel)
        # The thread may have looked into the inbox for the last time. A caller takes out only its own work, so an
        # interrupt here loses no other caller's.
        if self._ended:
            self._refuse_parcel(parcel)

    def _reason(self, otherwise: str) -> ClosedError:
        if self._fault is None:
            return ClosedError(otherwise)
        if isinstance(self._fault, ClosedError):
            return ClosedError(*self._fault.parts, advice=self._fault.advice)
        if isinstance(self._fault, DeviceLostError):
            return ClosedError("this Engine is closed, because ", *self._fault.parts, advice=self._fault.advice)
        error = ClosedError(f"this Engine closed itself after a fault: {self._fault!r}; open a new one")
        error.__cause__ = self._fault
        return error

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with self._serving:
            try:
                while not self._closed:
                    if not self._core.busy:
                        self._files.rest()
                    self._take_in()
                    if not self._closed and (self._core.busy or self._core.queue):
                        self._files.before_step()
                        self._sleeper.wake_for_work()
                        self._core.step()
                    self._sleeper.look(FLUSH_SECONDS)
                    if self._workers is not None:
                        self._workers.check_devices()
            except (ClosedError, DeviceLostError) as error:  # a mapped file has changed, or a worker is gone
                if self._closed:
                    return
                self._fault = error
                report(log, logging.ERROR, "the engine closes: %s", error)
            except BaseException as error:
                self._fault = error
                report(log, logging.CRITICAL, "the engine closes after a fault", exc_info=True)
            finally:
                self._finish()

    def _finish(self) -> None:
        self._closed = True
        try:
            reason = self._reason("the Engine was closed while this request was served")
            self._sleeper.fail_all(reason)
            if self._fault is None:
                self._core.flush(FLUSH_SECONDS)
            self._core.fail_all(reason)
        finally:
            self._ended = True
            self._refuse_rest()
            atexit.unregister(self.close)
            self._on_exit()

    def _take_in(self) -> None:
        """Pass the inbox to the core. Waits where there is nothing to do.

        Where a request waits for its caller, it returns in time for the next sweep, which ends cancelled and late ones.
        """
        try:
            while True:
                if self._core.busy:
                    entry = self._inbox.get_nowait()
                else:
                    idle = self._sleeper.look_in(None if self._workers is None else LOOK_SECONDS)
                    entry = self._inbox.get(timeout=SWEEP_SECONDS if self._core.queue else idle)
                if entry is None or isinstance(entry, _Owner):
                    self._closed = True
                    return
                work = entry.pop() if isinstance(entry, list) else entry
                if self._closed:
                    self._refuse(work)
                elif isinstance(work, tuple):
                    for request in work:
                        self._core.add(request)
                    self._taken_in = max(self._taken_in, work[0].call)
                    while self._handed_in and self._handed_in[0][0].call <= self._taken_in:
                        self._handed_in.popleft()
                elif isinstance(work, Sleep):
                    self._sleeper.add(work)
                else:
                    self._core.add_task(work)
                if self._closed:
                    return
        except Empty:
            pass

    def _refuse_rest(self) -> None:
        while True:
            try:
                entry = self._inbox.get_nowait()
            except Empty:
                return
            if isinstance(entry, list):
                self._refuse_parcel(entry)
            elif entry is not None and not isinstance(entry, _Owner):
                self._refuse(entry)

    def _refuse_parcel(self, parcel: Parcel) -> None:
        try:
            work = parcel.pop()
        except IndexError:  # another thread took the work
            return
        self._refuse(work)

    def _refuse(self, work: Work) -> None:
        error = self._reason("the Engine was closed before this request was served")
        if isinstance(work, tuple):
            for request in work:
                request.channel.send(error)
        else:
            work.fail(error)
