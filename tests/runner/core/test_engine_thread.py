"""The loop thread over a core with a fake executor: order, closing at every moment, faults, and that nobody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, cast
from unittest.mock import patch

import pytest

from ollama_engine.errors import ClosedError, ComputeError, EngineBusyError, NoMemoryError
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.channel import Event, RequestChannel
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.results import Result
from ollama_engine.runner.schedule.row_readers import AllRows
from ollama_engine.runner.schedule.scoring import Scoring
from tests.runner.fakes import FakeCache, FakeExecutor

PATIENCE = 20
"""Seconds after which something is taken to hang."""


@dataclass(eq=False)
class Job:
    """A task that runs `body`, then says how it ended."""

    body: Callable[[EngineCore], object] = lambda core: None
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    outcome: str | BaseException | None = None

    def run(self, core: EngineCore) -> None:
        self.started.set()
        self.body(core)
        self._end("done")

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, outcome: str | BaseException) -> None:
        assert self.outcome is None, "a task ends once"
        self.outcome = outcome
        self.ended.set()

    def result(self) -> str | BaseException | None:
        assert self.ended.wait(PATIENCE)
        return self.outcome


class Asked:
    """A request, and what comes out of it."""

    def __init__(self) -> None:
        self.events: SimpleQueue[Event] = SimpleQueue()
        self.sequence = Scoring(
            channel=RequestChannel(self.events),
            inputs=Inputs.text([1, 2, 3]),
            num_ctx=8,
            row_reader=AllRows(3, 4),
        )

    def end(self) -> Event:
        return self.events.get(timeout=PATIENCE)


class Rig:
    """A loop, and how often it has let go of the model."""

    def __init__(self, max_queue: int = 10000) -> None:
        self.exits: list[threading.Thread] = []
        self.executor = FakeExecutor()
        self.core = EngineCore(cast(Any, self.executor), cast(Any, FakeCache()), 2, Monitor(str), verify=True)
        self.thread = EngineThread(self.core, max_queue, "test", lambda: self.exits.append(threading.current_thread()))
        self.thread.start()

    def do(self, body: Callable[[EngineCore], object] = lambda core: None) -> Job:
        job = Job(body)
        self.thread.do(job)
        return job

    def ask(self) -> Asked:
        asked = Asked()
        self.thread.submit(asked.sequence)
        return asked


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.executor.go.set()
    made.thread.close()
    assert len(made.exits) == 1


def test_where_there_are_no_more_threads_the_model_is_let_go() -> None:
    exits: list[str] = []
    core = EngineCore(cast(Any, FakeExecutor()), cast(Any, FakeCache()), 2, Monitor(str))
    thread = EngineThread(core, 1, "test", lambda: exits.append("model"))
    no_more = RuntimeError("can't start new thread")
    with patch.object(thread._thread, "start", side_effect=no_more), pytest.raises(NoMemoryError, match="new thread"):
        thread.start()
    assert exits == ["model"]


def test_an_owner_who_is_gone_closes_the_loop() -> None:
    class Owner:
        pass

    owner, ended = Owner(), threading.Event()
    core = EngineCore(cast(Any, FakeExecutor()), cast(Any, FakeCache()), 2, Monitor(str))
    thread = EngineThread(core, 1, "test", ended.set, owner=owner)
    thread.start()
    asked = Asked()
    thread.submit(asked.sequence)
    assert isinstance(asked.end(), Result)
    assert not ended.is_set()
    del owner
    assert ended.wait(PATIENCE)
    with pytest.raises(ClosedError):
        thread.check_open()


# -- order -------------------------------------------------------------------------------------------------------------


def test_tasks_run_in_order_on_one_other_thread(rig: Rig) -> None:
    seen: list[tuple[int, threading.Thread]] = []
    jobs = [rig.do(lambda _, i=i: seen.append((i, threading.current_thread()))) for i in range(20)]
    assert [job.result() for job in jobs] == ["done"] * 20
    assert [i for i, _ in seen] == list(range(20))
    assert len({thread for _, thread in seen}) == 1
    assert threading.current_thread() not in {thread for _, thread in seen}


def test_requests_are_served_in_order_of_arrival(rig: Rig) -> None:
    rig.executor.go.clear()
    asked = [rig.ask() for _ in range(6)]
    rig.executor.go.set()
    assert all(isinstance(request.end(), Result) for request in asked)
    assert [request.sequence.key for request in asked] == list(range(6))
    assert rig.executor.served[:2] == [0, 1]


def test_tasks_run_while_nothing_computes(rig: Rig) -> None:
    asked = [rig.ask() for _ in range(5)]
    jobs = [rig.do(lambda _: assert_not(rig.executor.computing)) for _ in range(5)]
    assert [job.result() for job in jobs] == ["done"] * 5
    assert all(isinstance(request.end(), Result) for request in asked)


def assert_not(computing: bool) -> None:
    assert not computing


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="this system tells no thread's CPU time")
def test_an_idle_loop_sleeps(rig: Rig) -> None:
    rig.ask().end()
    rig.do().result()
    clock = time.pthread_getcpuclockid(rig.thread._thread.ident or 0)
    steps, before = rig.executor.steps, time.clock_gettime(clock)
    time.sleep(0.1)
    assert rig.executor.steps == steps
    assert time.clock_gettime(clock) - before < 0.02


# -- the queue ---------------------------------------------------------------------------------------------------------


def test_no_more_wait_than_max_queue() -> None:
    rig = Rig(max_queue=3)
    rig.executor.go.clear()
    asked = [rig.ask() for _ in range(2)]
    assert rig.executor.begun.wait(PATIENCE)
    asked += [rig.ask() for _ in range(3)]
    for _ in range(2):
        with pytest.raises(EngineBusyError, match="max_queue is 3"):
            rig.ask()
    assert rig.core.monitor.metrics.snapshot(0).requests["rejected"] == 2
    rig.executor.go.set()
    assert all(isinstance(request.end(), Result) for request in asked)
    assert isinstance(rig.ask().end(), Result)
    rig.thread.close()


def test_calls_that_are_cancelled_on_their_way_take_no_place() -> None:
    """They are still to be looked at, and the step under way may take long."""
    rig = Rig(max_queue=3)
    rig.executor.go.clear()
    asked = [rig.ask() for _ in range(2)]
    assert rig.executor.begun.wait(PATIENCE)
    for _ in range(700):
        rig.ask().sequence.channel.cancelled = True
    asked += [rig.ask() for _ in range(3)]
    with pytest.raises(EngineBusyError, match="max_queue is 3"):
        rig.ask()
    rig.executor.go.set()
    assert all(isinstance(request.end(), Result) for request in asked)
    assert isinstance(rig.ask().end(), Result)
    assert rig.thread.coming == 0
    rig.thread.close()


def test_a_cancelled_request_that_still_runs_makes_place() -> None:
    rig = Rig(max_queue=0)
    rig.executor.go.clear()
    first, second = rig.ask(), rig.ask()
    assert rig.executor.begun.wait(PATIENCE)
    with pytest.raises(EngineBusyError):
        rig.ask()
    first.sequence.channel.cancelled = True
    third = rig.ask()
    with pytest.raises(EngineBusyError):
        rig.ask()
    rig.executor.go.set()
    first.end()
    assert all(isinstance(request.end(), Result) for request in (second, third))
    rig.thread.close()


def test_many_submitters_are_counted_together() -> None:
    rig = Rig(max_queue=10)
    rig.executor.go.clear()
    start = threading.Barrier(8)

    def submit() -> list[Asked]:
        start.wait(PATIENCE)
        asked = []
        for _ in range(20):
            with suppress(EngineBusyError):
                asked.append(rig.ask())
        return asked

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(submit) for _ in range(8)]
        asked = [request for future in futures for request in future.result(PATIENCE)]
    # What is on its way from the inbox to the core is in neither for a moment.
    assert 12 <= len(asked) <= 14
    rig.executor.go.set()
    assert all(isinstance(request.end(), Result) for request in asked)
    rig.thread.close()


# -- closing -----------------------------------------------------------------------------------------------------------


def test_closing_fails_running_and_waiting_requests_and_tasks(rig: Rig) -> None:
    rig.executor.go.clear()
    asked = [rig.ask() for _ in range(5)]
    assert rig.executor.begun.wait(PATIENCE)
    job = rig.do()
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(rig.thread.close)
        time.sleep(0.01)
        assert not rig.exits
        rig.executor.go.set()
        closing.result(PATIENCE)
    assert all(isinstance(request.end(), (ClosedError, Result)) for request in asked)
    assert isinstance(asked[-1].sequence.channel, RequestChannel)
    assert isinstance(job.result(), (ClosedError, str))
    assert rig.executor.closed


def test_the_model_is_freed_by_the_loops_thread_after_the_last_task(rig: Rig) -> None:
    freed_while_running = []
    release = threading.Event()

    def body(core: EngineCore) -> None:
        release.wait(PATIENCE)
        freed_while_running.append(bool(rig.exits))

    job = rig.do(body)
    assert job.started.wait(PATIENCE)
    rig.thread.close(wait=False)
    release.set()
    rig.thread.close()
    assert freed_while_running == [False]
    assert threading.current_thread() not in rig.exits


def test_nothing_is_taken_after_closing(rig: Rig) -> None:
    rig.thread.close()
    rig.thread.close()
    for call in (rig.do, rig.ask, rig.thread.check_open):
        with pytest.raises(ClosedError, match="this Engine is closed"):
            call()


def test_closing_from_inside_a_task(rig: Rig) -> None:
    """As a log handler may do: it must neither wait for itself nor free what is in use."""
    held: list[bool] = []

    def body(core: EngineCore) -> None:
        rig.thread.close()
        held.append(not rig.exits)

    assert rig.do(body).result() == "done"
    assert held == [True]
    rig.thread.close()
    assert len(rig.exits) == 1


def test_the_loops_own_thread_cannot_wait_for_itself(rig: Rig) -> None:
    refused: list[BaseException] = []

    def body(core: EngineCore) -> None:
        for call in (rig.ask, rig.do):
            try:
                call()
            except ComputeError as error:
                refused.append(error)

    assert rig.do(body).result() == "done"
    assert ["in this thread" in str(error) for error in refused] == [True, True]


def test_closing_without_waiting(rig: Rig) -> None:
    """A finaliser closes the engine without waiting for its thread."""
    release = threading.Event()
    job = rig.do(lambda _: release.wait(PATIENCE))
    assert job.started.wait(PATIENCE)
    rig.thread.close(wait=False)
    assert not rig.exits
    release.set()
    rig.thread.close()
    assert job.outcome == "done"


@pytest.mark.parametrize("round_", range(20))
def test_everything_ends_however_submitting_and_closing_meet(rig: Rig, round_: int) -> None:
    start = threading.Barrier(5)

    def submit_many() -> tuple[list[Job], list[Asked]]:
        jobs: list[Job] = []
        asked: list[Asked] = []
        start.wait()
        try:
            for _ in range(50):
                jobs.append(rig.do())
                asked.append(rig.ask())
        except ClosedError:
            pass
        return jobs, asked

    def close() -> tuple[list[Job], list[Asked]]:
        start.wait()
        time.sleep(round_ * 0.0005)
        rig.thread.close()
        return [], []

    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(submit_many) for _ in range(4)] + [pool.submit(close)]
        done = [future.result(PATIENCE) for future in futures]
    for jobs, asked in done:
        assert all(job.result() == "done" or isinstance(job.outcome, ClosedError) for job in jobs)
        assert all(isinstance(request.end(), (Result, ClosedError)) for request in asked)
        assert all(request.events.empty() for request in asked), "a request ends once"


def test_several_threads_may_close_at_once(rig: Rig) -> None:
    rig.ask()
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(rig.thread.close) for _ in range(4)]:
            future.result(PATIENCE)
    assert len(rig.exits) == 1


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [AssertionError("the books are wrong"), MemoryError("none"), KeyboardInterrupt()])
def test_a_fault_closes_the_engine_and_says_why(rig: Rig, error: BaseException) -> None:
    release = threading.Event()

    def body(core: EngineCore) -> None:
        release.wait(PATIENCE)
        raise error

    rig.do(body)
    asked = [rig.ask() for _ in range(4)]
    job = rig.do()
    release.set()
    for request in asked:
        ended = request.end()
        assert isinstance(ended, ClosedError)
        assert ended.__cause__ is error
        assert repr(error) in str(ended)
    assert isinstance(job.result(), ClosedError)
    rig.thread.close()
    with pytest.raises(ClosedError, match="closed itself after a fault") as caught:
        rig.ask()
    assert caught.value.__cause__ is error


def test_a_fault_is_told_even_where_nothing_can_be_tidied_up(rig: Rig) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the books are wrong")

    rig.executor.go.clear()
    asked = [rig.ask() for _ in range(4)]
    assert rig.executor.begun.wait(PATIENCE)
    rig.core.cache_manager.leave = fail  # type: ignore[method-assign]
    rig.executor.go.set()
    assert all("books are wrong" in str(request.end()) for request in asked)


def test_a_step_that_fails_ends_its_own_requests_only(rig: Rig) -> None:
    rig.executor.go.clear()
    rig.executor.fail_at = 0
    asked = [rig.ask() for _ in range(5)]
    rig.executor.go.set()
    ends = [request.end() for request in asked]
    assert isinstance(ends[0], ComputeError)
    assert all(isinstance(end, (ComputeError, Result)) for end in ends)
    assert isinstance(ends[-1], Result)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_comes_as_the_loop_ends_is_told_one_end(rig: Rig, moment: str) -> None:
    """The caller is held up right before its work is in the inbox, or right after, until the thread has ended."""
    reached, ended = threading.Event(), threading.Event()

    class Slow(SimpleQueue[Any]):
        def put(self, work: Any, block: bool = True, timeout: float | None = None) -> None:
            if moment == "after":
                inbox.put(work)
            reached.set()
            assert ended.wait(PATIENCE)
            if moment == "before":
                inbox.put(work)

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            return inbox.get(block, timeout)

        def get_nowait(self) -> Any:
            # Callers take nothing out: one that is interrupted there would lose another's work.
            assert threading.current_thread() is rig.thread._thread
            return inbox.get_nowait()

    job, inbox = Job(), rig.thread._inbox
    with ThreadPoolExecutor(1) as caller, patch.object(rig.thread, "_inbox", Slow()):
        done = caller.submit(rig.thread.do, job)
        assert reached.wait(PATIENCE)
        if moment == "after":
            assert job.result() == "done"
        rig.thread._closed = True
        inbox.put(None)
        rig.thread._thread.join(PATIENCE)
        ended.set()
        done.result(PATIENCE)
    assert moment == "after" or isinstance(job.result(), ClosedError)
    assert not any(inbox.get_nowait() for _ in range(inbox.qsize()))
