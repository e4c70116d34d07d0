"""Transfers: progress of pulls and pushes, and one piece of work that several callers wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ollama_engine.async_tasks import cancel_and_wait, wait_until_ended
from ollama_engine.errors import EngineBusyError, Option

__all__ = ["Meter", "Places", "Report", "SharedTransfers", "TransferProgress", "TransferSettings", "in_thread",
           "run_together"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """A line of progress.

    Attributes:
        status: what is done ("pulling manifest", "success" ...).
        digest: of the blob that is transferred, if any, and
        total, completed: its bytes, and how many are there.
    """

    status: str
    digest: str = ""
    total: int = 0
    completed: int = 0

    def as_json(self) -> dict[str, Any]:
        """The progress as JSON of Ollama's API: empty fields are left out."""
        known = {"digest": self.digest, "total": self.total, "completed": self.completed}
        return {"status": self.status, **{key: value for key, value in known.items() if value}}


Value = TypeVar("Value")
Report = Callable[[TransferProgress], None]


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """How transfers are made.

    Attributes:
        streams: connections of one pull or push at a time.
        part_bytes: least bytes of the parts that a blob is downloaded in.
        retries: failures in a row, without a byte between, after which a part is given up.
        first_wait: seconds before the first retry; each further one waits twice as long, 30 s at most.
        timeout: seconds without a byte after which a connection has failed.
    """

    streams: int = 4
    part_bytes: int = 64 << 20
    retries: int = 6
    first_wait: float = 0.5
    timeout: float = 30.0

    def wait(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return float(min(self.first_wait * 2 ** (failures - 1), 30.0))


class Meter:
    """Counts one blob's bytes, and reports ten times a second at most."""

    def __init__(self, report: Report, verb: str, digest: str, total: int) -> None:
        self._report = report
        self._title = f"{verb} {digest.partition(':')[2][:12]}"
        self._digest = digest
        self._total = total
        self._next = 0.0
        self.completed = 0

    def add(self, nbytes: int) -> None:
        self.show(self.completed + nbytes)

    def show(self, completed: int) -> None:
        """So many bytes are there."""
        self.completed = completed
        now = time.monotonic()
        if completed >= self._total or now >= self._next:
            self._next = now + 0.1
            self._report(TransferProgress(self._title, self._digest, self._total, min(completed, self._total)))


@dataclass
class _Follower:
    pending: dict[tuple[str, str], TransferProgress] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, progress: TransferProgress) -> None:
        """Queue a blob's progress in place of an older one that still waits to be read."""
        key = (progress.status, progress.digest)
        self.pending.pop(key, None)
        self.pending[key] = progress
        self.news.set()


class _Job:
    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.followers: list[_Follower] = []
        self.seen = _Follower()

    def report(self, progress: TransferProgress) -> None:
        for follower in (self.seen, *self.followers):
            follower.tell(progress)


class Places:
    """Places for work that goes on at once; each has connections, threads and unfinished files of its own."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._taken = 0

    def take(self) -> None:
        """Take a place. Raises EngineBusyError where there is none; no request waits, as the client may ask again."""
        if self._taken >= self._number:
            raise EngineBusyError(
                Option("max_transfers"), f" is {self._number}, and as many pulls, pushes, creates and uploads go on"
            )
        self._taken += 1

    def give_back(self) -> None:
        """Give the place back."""
        self._taken -= 1


class SharedTransfers:
    """Work by key: who asks for what is under way follows it. When the last follower leaves, the work is cancelled.

    Each takes one of `places`, where there are any.
    """

    def __init__(self, places: Places | None = None) -> None:
        self._jobs: dict[Hashable, _Job] = {}
        self._places = places

    async def follow(
        self, key: Hashable, start: Callable[[Report], Coroutine[Any, Any, None]]
    ) -> AsyncGenerator[TransferProgress, None]:
        """Progress of the work `key`, from its beginning; `start` begins it where it is not under way.

        Raises what the work raises, and EngineBusyError where there is no place for it.
        """
        job = self._jobs.get(key)
        if job is None or job.task is None or job.task.done():
            job = self._begun(start)
            self._jobs[key] = job
        assert job.task is not None, "set above, without a moment between"
        follower = _Follower(dict(job.seen.pending))
        follower.news.set()
        job.followers.append(follower)
        job.task.add_done_callback(lambda _: follower.news.set())
        try:
            while not job.task.done() or follower.pending:
                await follower.news.wait()
                follower.news.clear()
                while follower.pending:
                    yield follower.pending.pop(next(iter(follower.pending)))
            job.task.result()
        finally:
            job.followers.remove(follower)
            if not job.followers:
                if self._jobs.get(key) is job:
                    del self._jobs[key]
                await cancel_and_wait(job.task)

    def _begun(self, start: Callable[[Report], Coroutine[Any, Any, None]]) -> _Job:
        places, job = self._places, _Job()
        if places is not None:
            places.take()
        job.task = asyncio.create_task(start(job.report))
        if places is not None:
            job.task.add_done_callback(lambda _: places.give_back())
        return job


async def in_thread(work: Callable[..., Value], *arguments: object) -> Value:
    """The result of work in a thread. It cannot be stopped: a caller that is cancelled waits until it has ended."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        await wait_until_ended(task)
        raise
    return task.result()


async def run_together(work: Iterable[Awaitable[Any]]) -> None:
    """Wait for all; when one fails, or the caller is cancelled, the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)
