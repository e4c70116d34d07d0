"""The loop thread with fake jobs: order, closing at every moment, and that no caller waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from ollama_engine.errors import ClosedError, ComputeError
from ollama_engine.runner.executor import Executor
from ollama_engine.runner.loop import Loop

PATIENCE = 20
"""Seconds after which something is taken to hang."""


@dataclass(eq=False)
class FakeJob:
    """Runs `body`, then says how it ended."""

    body: Callable[[FakeJob], None] = lambda job: None
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    outcome: str | BaseException | None = None

    def run(self, executor: Any, cache: Any) -> None:
        self.started.set()
        self.body(self)
        self._end("done")

    def cancel(self) -> None:
        self.cancelled.set()

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, outcome: str | BaseException) -> None:
        assert self.outcome is None, "a job ends once"
        self.outcome = outcome
        self.ended.set()

    def result(self) -> str | BaseException | None:
        assert self.ended.wait(PATIENCE)
        return self.outcome


def until_cancelled(job: FakeJob) -> None:
    assert job.cancelled.wait(PATIENCE)


class Rig:
    """A loop, and how often it has let go of the model."""

    def __init__(self) -> None:
        self.exits: list[threading.Thread] = []
        nothing = cast(Executor, None)
        self.loop = Loop(nothing, cast(Any, None), "test", lambda: self.exits.append(threading.current_thread()))

    def submit(self, body: Callable[[FakeJob], None] = lambda job: None) -> FakeJob:
        job = FakeJob(body)
        self.loop.submit(job)
        return job


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.loop.close()
    assert len(made.exits) == 1


def test_jobs_run_in_order_on_one_other_thread(rig: Rig) -> None:
    seen: list[tuple[int, threading.Thread]] = []
    jobs = [rig.submit(lambda _, i=i: seen.append((i, threading.current_thread()))) for i in range(20)]
    assert [job.result() for job in jobs] == ["done"] * 20
    assert [i for i, _ in seen] == list(range(20))
    assert len({thread for _, thread in seen}) == 1
    assert threading.current_thread() not in {thread for _, thread in seen}


def test_closing_cancels_the_running_job_and_fails_the_waiting_ones(rig: Rig) -> None:
    running = rig.submit(until_cancelled)
    waiting = [rig.submit() for _ in range(3)]
    assert running.started.wait(PATIENCE)
    rig.loop.close()
    assert running.outcome == "done"
    for job in waiting:
        assert isinstance(job.outcome, ClosedError)
        assert not job.started.is_set()
    assert len(rig.exits) == 1


def test_the_model_is_freed_by_the_loops_thread_after_the_last_job(rig: Rig) -> None:
    freed_while_running = []

    def body(job: FakeJob) -> None:
        until_cancelled(job)
        freed_while_running.append(bool(rig.exits))

    job = rig.submit(body)
    assert job.started.wait(PATIENCE)
    rig.loop.close()
    assert freed_while_running == [False]
    assert threading.current_thread() not in rig.exits


def test_nothing_is_taken_after_closing(rig: Rig) -> None:
    rig.loop.close()
    rig.loop.close()
    with pytest.raises(ClosedError, match="this Engine is closed"):
        rig.submit()


def test_closing_from_inside_a_job(rig: Rig) -> None:
    """As a log handler may do: it must neither wait for itself nor free what is in use."""
    held: list[bool] = []

    def body(job: FakeJob) -> None:
        rig.loop.close()
        held.append(not rig.exits)

    assert rig.submit(body).result() == "done"
    assert held == [True]
    rig.loop.close()
    assert len(rig.exits) == 1


def test_a_job_cannot_wait_for_another(rig: Rig) -> None:
    refused: list[BaseException] = []

    def body(job: FakeJob) -> None:
        try:
            rig.submit()
        except ComputeError as error:
            refused.append(error)

    assert rig.submit(body).result() == "done"
    assert "in this thread" in str(refused[0])


def test_closing_without_waiting(rig: Rig) -> None:
    """As a finaliser does."""
    release = threading.Event()
    job = rig.submit(lambda _: cast(None, release.wait(PATIENCE)))
    assert job.started.wait(PATIENCE)
    rig.loop.close(wait=False)
    assert not rig.exits
    assert job.cancelled.is_set()
    release.set()
    rig.loop.close()
    assert job.outcome == "done"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_job_that_breaks_its_promise_does_not_leave_others_waiting(rig: Rig) -> None:
    release = threading.Event()

    def body(job: FakeJob) -> None:
        release.wait(PATIENCE)
        raise AssertionError("jobs raise nothing")

    rig.submit(body)
    waiting = rig.submit()
    release.set()
    assert isinstance(waiting.result(), ClosedError)
    rig.loop.close()
    with pytest.raises(ClosedError):
        rig.submit()


@pytest.mark.parametrize("round_", range(20))
def test_every_job_ends_however_submitting_and_closing_meet(rig: Rig, round_: int) -> None:
    start = threading.Barrier(5)

    def submit_many() -> list[FakeJob]:
        jobs = []
        start.wait()
        try:
            for _ in range(50):
                jobs.append(rig.submit())
        except ClosedError:
            pass
        return jobs

    def close() -> list[FakeJob]:
        start.wait()
        for _ in range(round_ * 20):
            pass
        rig.loop.close()
        return []

    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(submit_many) for _ in range(4)] + [pool.submit(close)]
        jobs = [job for future in futures for job in future.result(PATIENCE)]
    for job in jobs:
        outcome = job.result()
        assert outcome == "done" or isinstance(outcome, ClosedError)


def test_two_threads_may_close_at_once(rig: Rig) -> None:
    rig.submit(until_cancelled)
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(rig.loop.close) for _ in range(4)]:
            future.result(PATIENCE)
    assert len(rig.exits) == 1
