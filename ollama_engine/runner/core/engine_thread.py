"""EngineThread: the one thread that owns the core. Callers put work into its inbox, and do not wait for it here."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from ollama_engine.errors import ClosedError, ComputeError, EngineBusyError, Option
from ollama_engine.runner.core.engine_core import EngineCore, Task
from ollama_engine.runner.core.request_queue import SWEEP_SECONDS
from ollama_engine.runner.observe.monitor import Monitor, report
from ollama_engine.runner.schedule.queued import QueuedRequest

__all__ = ["EngineThread"]

log = logging.getLogger(__name__)


class _Owner(weakref.ref[object]):
    """Comes into the queue when the owner is gone."""

    __slots__ = ()


Work = tuple[QueuedRequest, ...] | Task
"""Requests of one call, or a task."""
Parcel = list[Work]
"""What was handed in, until somebody takes it out (`list.pop` gives it to one only), who alone says how it ended."""


class EngineThread:
    """Steps the core on a thread of its own while there is work, until closed; `on_exit` runs there, as the last thing.

    It closes by itself when `owner` is gone. Objects go in any thread and at any place, so what follows from it waits
    for no lock, and is no Python code, in which an interrupt could be swallowed: SimpleQueue.put is called by weak
    references, and may interrupt itself.
    """

    def __init__(
        self, core: EngineCore, max_queue: int, name: str, on_exit: Callable[[], None], owner: object = None
    ) -> None:
        # -- collaborators --
        self._core = core
        self._on_exit = on_exit
        # -- configuration --
        self._max_queue = max_queue
        # -- state --
        self._inbox: SimpleQueue[Parcel | Task | _Owner | None] = SimpleQueue()
        """Parcels, tasks that are weak references, and what wakes a loop that is to close."""
        # A finaliser that runs in the middle of `submit` may submit too.
        self._counting = threading.RLock()
        self._calls = 0
        self._handed_in: deque[tuple[QueuedRequest, ...]] = deque()
        """Calls that the core has not taken in yet. Of one that was interrupted nothing comes; it is cancelled."""
        self._taken_in = 0
        self._closed = False
        self._ended = False
        self._fault: BaseException | None = None
        # -- thread --
        self._pid = os.getpid()
        self._owner = None if owner is None else _Owner(owner, self.drop)
        self._thread = threading.Thread(target=self._serve, name=f"ollama_engine {name}", daemon=True)
        self._serving = threading.Lock()

    def start(self) -> None:
        """Begin to serve. Raises RuntimeError when the system has no more threads; `on_exit` has run then."""
        try:
            self._thread.start()
        except RuntimeError:
            self._on_exit()
            raise
        # The interpreter must not go away under a computation.
        atexit.register(self.close)

    # -- from any thread -----------------------------------------------------------------------------------------------

    def submit(self, *requests: QueuedRequest) -> None:
        """Queue requests; those of one call count as one, so that a long list is not refused for its length.

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
            # Last: for a submission that is counted and never comes, a place in the queue would stay taken.
            self._calls = number

    @property
    def coming(self) -> int:
        """Submissions that the core has not taken in yet."""
        return max(0, self._calls - self._taken_in)

    def _is_full(self) -> bool:
        """Whether as many calls wait as may. Those that were cancelled on their way to the core take no place."""
        queue = self._core.queue
        if not queue.is_full(self._max_queue - self.coming):
            return False
        wanted = sum(any(not one.channel.unwanted for one in call) for call in list(self._handed_in))
        return queue.is_full(self._max_queue - wanted)

    @property
    def monitor(self) -> Monitor:
        """What reports of the engine; any thread may look into it."""
        return self._core.monitor

    @property
    def drop(self) -> Callable[[Any], None]:
        """What weak references to objects that are gone are handed to: the owner's, and those that are tasks."""
        return self._inbox.put

    def do(self, task: Task) -> None:
        """Queue a task. Raises ClosedError and ComputeError as `submit` does."""
        self.check_open()
        self._put(task)

    def post(self, task: Task) -> None:
        """Queue a task, or leave it where the engine is closed. Takes no lock and raises nothing: for finalisers."""
        if self._pid == os.getpid():
            self._put(task)

    def check_open(self) -> None:
        """Raise ClosedError or ComputeError where `submit` would."""
        if self._pid != os.getpid():
            raise ClosedError("this Engine was opened before the process forked; open one in the child")
        if self._closed:
            raise self._reason("this Engine is closed")
        if threading.current_thread() is self._thread:
            raise ComputeError("the Engine is computing in this thread; a log handler or finaliser must not use it")

    def close(self, *, wait: bool = True) -> None:
        """End all requests after the current step, and join the thread. Safe to call twice.

        From the loop's own thread, or without `wait`, this happens as soon as the current step has ended.
        """
        if self._pid != os.getpid():
            return  # a fork has no such thread
        self._closed = True
        self._inbox.put(None)
        if wait and threading.current_thread() is not self._thread:
            # Thread.join takes a thread that runs on for ended when it is interrupted (bpo-45274), so it comes last.
            with self._serving:
                pass
            self._thread.join()

    def _put(self, work: Work) -> None:
        late = self._ended
        if late:
            self._refuse(work)
            return
        parcel = [work]
        self._inbox.put(parcel)
        # The thread may have looked for the last time. A caller takes out nothing but its own: an interrupt now loses
        # nobody else's.
        if self._ended:
            self._refuse_parcel(parcel)

    def _reason(self, otherwise: str) -> ClosedError:
        if self._fault is None:
            return ClosedError(otherwise)
        error = ClosedError(f"this Engine closed itself after a fault: {self._fault!r}; open a new one")
        error.__cause__ = self._fault
        return error

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        with self._serving:
            try:
                while not self._closed:
                    self._take_in()
                    if not self._closed and (self._core.busy or self._core.queue):
                        self._core.step()
            except BaseException as error:
                self._fault = error
                report(log, logging.CRITICAL, "the engine closes after a fault", exc_info=True)
            finally:
                self._finish()

    def _finish(self) -> None:
        self._closed = True
        try:
            self._core.fail_all(self._reason("the Engine was closed while this request was served"))
        finally:
            self._ended = True
            self._refuse_rest()
            atexit.unregister(self.close)
            self._on_exit()

    def _take_in(self) -> None:
        """Hand what came to the core; waits for something while there is nothing to do.

        Not for ever while a request is there that waits for its caller: it may be cancelled meanwhile, or be late.
        """
        try:
            while True:
                if self._core.busy:
                    found = self._inbox.get_nowait()
                else:
                    found = self._inbox.get(timeout=SWEEP_SECONDS if self._core.queue else None)
                if found is None or isinstance(found, _Owner):
                    self._closed = True
                    return
                work = found.pop() if isinstance(found, list) else found
                if self._closed:
                    self._refuse(work)
                elif isinstance(work, tuple):
                    for request in work:
                        self._core.add(request)
                    self._taken_in = max(self._taken_in, work[0].call)
                    while self._handed_in and self._handed_in[0][0].call <= self._taken_in:
                        self._handed_in.popleft()
                else:
                    self._core.add_task(work)
                if self._closed:
                    return
        except Empty:
            pass

    def _refuse_rest(self) -> None:
        while True:
            try:
                found = self._inbox.get_nowait()
            except Empty:
                return
            if isinstance(found, list):
                self._refuse_parcel(found)
            elif found is not None and not isinstance(found, _Owner):
                self._refuse(found)

    def _refuse_parcel(self, parcel: Parcel) -> None:
        try:
            work = parcel.pop()
        except IndexError:  # somebody else has it
            return
        self._refuse(work)

    def _refuse(self, work: Work) -> None:
        error = self._reason("the Engine was closed before this request was served")
        if isinstance(work, tuple):
            for request in work:
                request.channel.send(error)
        else:
            work.fail(error)
