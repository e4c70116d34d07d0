"""EmbedJob: what a caller and the engine share of one call for embeddings, and how either waits for the other.

No lock is held anywhere, so that no interrupt can leave one taken: flags are set by plain stores, what comes from
several threads goes into lists, and a queue of C code is what a thread waits at.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple, Protocol

from ollama_engine.config import Pooling
from ollama_engine.errors import EngineError
from ollama_engine.input import Int32Array
from ollama_engine.runner.embed.pooling import FloatArray
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.prompts import numbered

__all__ = ["AsyncBell", "Bell", "EmbedJob", "Found", "Text"]

log = logging.getLogger(__name__)


class Text(NamedTuple):
    """What is computed for one embedding, or one score."""

    tokens: Int32Array
    pooling: Pooling
    length: int
    """Tokens before it was cut."""
    second: int | None = None
    """Of a pair: where its second text begins."""


class Found(Protocol):
    """Where the vectors of a job are put together to what its caller gets."""

    def put(self, numbers: Sequence[int], texts: Sequence[Text], vectors: Sequence[FloatArray]) -> None:
        """What came of some of the texts. Called from the engine's thread."""


class Bell:
    """A thread waits for it; as often as it is rung, somebody goes on."""

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Called from any thread."""
        self._rung.put(None)

    def wait(self) -> None:
        """Until it is rung."""
        self._rung.get()


class AsyncBell:
    """The same for the event loop that runs where it is made."""

    def __init__(self) -> None:
        self._thread_of_engine = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Called from any thread. Raises RuntimeError when the event loop is closed: nobody will ever look."""
        self._thread_of_engine.call_soon_threadsafe(self._rung.set)

    async def wait(self) -> None:
        """Until it is rung."""
        await self._rung.wait()


class EmbedJob:
    """The texts of one call. They come in pieces, for the first ones are computed while others are still cut up."""

    def __init__(
        self,
        n_texts: int,
        found: Found,
        options: RequestOptions,
        submitted_at: float,
        ring: Callable[[], None],
        name: str | None,
    ) -> None:
        # -- for both sides --
        self.options = options
        self.submitted_at = submitted_at
        self.cancelled = False
        """A plain flag, set once: to set it takes no call, so that no interrupt comes in between."""
        self.ended = False
        """Whether `error` is known, and all vectors are there if it is None."""
        # -- for the engine's thread --
        self.key: int | None = None
        """In the order of arrival; None until something of it came."""
        self.pending: deque[tuple[int, Text]] = deque()
        """Texts that wait, by number."""
        self._found = found
        self._missing = n_texts
        self._name = name
        """What the caller calls the texts; None for a single one."""
        self._ring = ring
        # The first counts: the thread that cuts up texts may fail as the engine's ends the job.
        self._ends: list[BaseException | None] = []

    @property
    def over(self) -> bool:
        """Whether nobody waits for more of it."""
        return self.cancelled or self.ended

    @property
    def error(self) -> BaseException | None:
        """What it ended with; for a job that has ended."""
        return self._ends[0]

    def give(self, numbers: Sequence[int], texts: Sequence[Text], vectors: Sequence[FloatArray | EngineError]) -> bool:
        """What came of some of its texts; whether all are there now. Raises the first error among them."""
        for number, vector in zip(numbers, vectors, strict=True):
            if isinstance(vector, EngineError):
                raise vector if self._name is None else numbered(vector, self._name, number)
        self._found.put(numbers, texts, [vector for vector in vectors if not isinstance(vector, EngineError)])
        self._missing -= len(numbers)
        return not self._missing

    def end(self, error: BaseException | None) -> None:
        """It has ended, well or not. From any thread; raises nothing, for that would end more than this job."""
        self._ends.append(error)
        # Before the bell, and after all else: who finds it ended finds the rest.
        self.ended = True
        try:
            self._ring()
        except Exception as closed:  # of an event loop, which may be any program's own
            log.debug("nobody waits for embeddings any more: %r", closed)
