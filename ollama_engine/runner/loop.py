"""The loop: one thread that owns the core. Callers only touch queues, so a slow or gone consumer holds up nobody."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from ollama_engine.errors import ClosedError, ComputeError, EngineBusyError
from ollama_engine.runner.core import Core, Task
from ollama_engine.runner.monitor import report
from ollama_engine.runner.sequence import Sequence

__all__ = ["Loop"]

log = logging.getLogger(__name__)

Work = Sequence | Task


class Loop:
    """Steps the core on a thread of its own while there is work, until closed; `on_exit` runs there, as the last thing.

    Closing may come from a finaliser, in any thread and at any place, so nothing there waits for a lock: flags are set
    before they are looked at from the other side, and SimpleQueue.put may interrupt itself.
    """

    def __init__(self, core: Core, max_queue: int, name: str, on_exit: Callable[[], None]) -> None:
        # -- collaborators --
        self._core = core
        self._on_exit = on_exit
        # -- configuration --
        self._max_queue = max_queue
        # -- state --
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        # A finaliser that runs in the middle of `submit` may submit too.
        self._counting = threading.RLock()
        self._submissions = 0
        self._taken_in = 0
        self._closed = False
        self._ended = False
        self._fault: BaseException | None = None
        # -- thread --
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name=f"ollama_engine {name}", daemon=True)
        self._thread.start()
        # The interpreter must not go away under a computation.
        atexit.register(self.close)

    # -- from any thread -----------------------------------------------------------------------------------------------

    def submit(self, *sequences: Sequence) -> None:
        """Queue requests; those of one call count as one, so that a long list is not refused for its length.

        Raises EngineBusyError when `max_queue` wait already, ClosedError, and ComputeError on the loop's own thread,
        which would wait for itself.
        """
        self.check_open()
        with self._counting:
            coming = self._submissions - self._taken_in
            if self._core.roster.is_full(self._max_queue - coming):
                self._core.monitor.metrics.ended("rejected")
                raise EngineBusyError(f"max_queue is {self._max_queue}, and as many requests wait; try again later")
            self._submissions += 1
            for one in sequences:
                one.submission = self._submissions
                self._put(one)

    @property
    def coming(self) -> int:
        """Submissions that the core has not taken in yet."""
        return self._submissions - self._taken_in

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
            self._thread.join()

    def _put(self, work: Work) -> None:
        self._inbox.put(work)
        if self._ended:
            self._refuse_rest()

    def _reason(self, otherwise: str) -> ClosedError:
        if self._fault is None:
            return ClosedError(otherwise)
        error = ClosedError(f"this Engine closed itself after a fault: {self._fault!r}; open a new one")
        error.__cause__ = self._fault
        return error

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._closed:
                self._take_in()
                if not self._closed and self._core.busy:
                    self._core.step()
        except BaseException as error:
            self._fault = error
            report(log, logging.CRITICAL, "the engine closes after a fault", exc_info=True)
        finally:
            self._closed = True
            try:
                self._core.fail_all(self._reason("the Engine was closed while this request was served"))
            finally:
                self._ended = True
                self._refuse_rest()
                atexit.unregister(self.close)
                self._on_exit()

    def _take_in(self) -> None:
        """Hand what came to the core; waits for something while there is nothing to do."""
        try:
            while True:
                work = self._inbox.get(block=not self._core.busy)
                if work is None or self._closed:
                    if work is not None:
                        self._refuse(work)
                    return
                if isinstance(work, Sequence):
                    self._core.add(work)
                    self._taken_in = max(self._taken_in, work.submission)
                else:
                    self._core.add_task(work)
        except Empty:
            pass

    def _refuse_rest(self) -> None:
        while True:
            try:
                work = self._inbox.get_nowait()
            except Empty:
                return
            if work is not None:
                self._refuse(work)

    def _refuse(self, work: Work) -> None:
        error = self._reason("the Engine was closed before this request was served")
        if isinstance(work, Sequence):
            work.ticket.send(error)
        else:
            work.fail(error)
