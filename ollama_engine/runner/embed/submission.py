"""EmbedSubmission: where texts to embed are handed in, by threads and for asyncio, and what comes out of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, get_args

import numpy as np

from ollama_engine.config import Pooling
from ollama_engine.errors import ClosedError, ConfigError, EngineBusyError, Option, UnsupportedModelError
from ollama_engine.ml.metadata import Metadata
from ollama_engine.models import Embeds, TextEncoder, known_values
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.embed.embedder import Embedder
from ollama_engine.runner.embed.job import AsyncBell, Bell, EmbedJob, Found, Text
from ollama_engine.runner.embed.pooling import FloatArray, check_pooling, finish, model_pooling, read_pooling
from ollama_engine.runner.embed.queue import EmbedQueue, Ending, Piece
from ollama_engine.runner.embed.texts import EmbedTexts, TooLong
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.options import RequestOptions, whole
from ollama_engine.runner.request.prompts import Prompt

__all__ = ["EmbedSubmission", "Embedding", "Pending", "TooLong"]

Result = TypeVar("Result")

PIECES = (1, 16)
"""Batches that the first piece of a call holds, and the others at most: it begins soon, and does not hand in often."""

AT_ONCE = 4096
"""Characters that are cut into tokens on an event loop; that takes less than a millisecond."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """What a text became.

    Attributes:
        vector: float32 [dim]; with pooling "none" [n_tokens, dim], one for each token.
        prompt_tokens: tokens of the text, special ones included.
        dropped_tokens: of these, left out at the end because they were more than num_ctx.
    """

    vector: FloatArray
    prompt_tokens: int
    dropped_tokens: int


class Vectors(Found):
    """All in one array float32 [n, dim], cut and normalized."""

    def __init__(self, n: int, dim: int, *, normalize: bool) -> None:
        self.rows = np.empty((n, dim), dtype=np.float32)
        self._normalize = normalize

    def put(self, numbers: Sequence[int], texts: Sequence[Text], vectors: Sequence[FloatArray]) -> None:
        """See Found."""
        self.rows[numbers] = finish(np.stack(vectors), self.rows.shape[1], normalize=self._normalize)


class Embeddings(Found):
    """An Embedding for each text."""

    def __init__(self, n: int, dim: int, *, normalize: bool) -> None:
        self.rows: list[Embedding | None] = [None] * n
        self._dim = dim
        self._normalize = normalize

    def put(self, numbers: Sequence[int], texts: Sequence[Text], vectors: Sequence[FloatArray]) -> None:
        """See Found."""
        for number, text, vector in zip(numbers, texts, vectors, strict=True):
            done = finish(vector, self._dim, normalize=self._normalize)
            self.rows[number] = Embedding(done, text.length, text.length - len(text.tokens))

    def all(self) -> list[Embedding]:
        """Once all are there."""
        return [found for found in self.rows if found is not None]


@dataclass(frozen=True, eq=False)
class Pending(Generic[Result]):
    """A call that `wait` or `coming` hands in; it takes no place in the queue before."""

    texts: Iterator[Text]
    n_texts: int
    found: Found
    result: Callable[[], Result]
    """What the caller gets, of what has been found."""
    options: RequestOptions
    name: str | None
    """What the caller calls the texts; None for a single one."""
    short: bool
    """Whether an event loop may cut the texts into tokens."""
    submission: EmbedSubmission

    def wait(self) -> Result:
        """Hand it in, and what comes of it; an interrupt takes it back. Raises what went wrong."""
        bell = Bell()
        job = self._job(bell.ring)
        try:
            self.submission.register(job)
            self._feed(job, Exception)
            bell.wait()
            _raise(job.error)
            return self.result()
        finally:
            job.cancelled = True
            self.submission.leave(job)
            del job  # which has the error, whose traceback has this frame

    async def coming(self) -> Result:
        """`wait` for asyncio; cancelling the task takes it back."""
        bell = AsyncBell()
        job = self._job(bell.ring)
        try:
            self.submission.register(job)
            if self.short:
                self._feed(job, Exception)
            else:
                threading.Thread(target=self._feed, args=(job,), name="ollama_engine texts", daemon=True).start()
            await bell.wait()
            _raise(job.error)
            return self.result()
        finally:
            job.cancelled = True
            self.submission.leave(job)
            del job  # which has the error, whose traceback has this frame

    def _job(self, ring: Callable[[], None]) -> EmbedJob:
        return EmbedJob(self.n_texts, self.found, self.options, self.submission.clock(), ring, self.name)

    def _feed(self, job: EmbedJob, kind: type[BaseException] = BaseException) -> None:
        """Hand in the texts; an error of this kind is what the job ends with."""
        try:
            self.submission.feed(job, self.texts)
            if not self.n_texts:
                self.submission.end(job, None)
        except kind as error:
            self.submission.end(job, error)


class EmbedSubmission:
    """Where texts are handed in, from any thread. Raises ConfigError, TokenizerError and the errors of
    `EngineThread.do`.
    """

    def __init__(self, loaded: Loaded, thread: EngineThread, monitor: Monitor) -> None:
        metadata = known_values(loaded.gguf.metadata)
        # -- collaborators --
        self._loaded = loaded
        self._engine_thread = thread
        self._monitor = monitor
        self._texts = EmbedTexts(loaded)
        self._queue = EmbedQueue(Embedder(loaded, _head_pooling(loaded, metadata)), loaded.config.batch_size, monitor)
        # -- configuration --
        self.clock = monitor.clock
        self._n_embd = loaded.model.n_embd if isinstance(loaded.model, Embeds) else None
        # Asked here once: an interrupt in a look at a protocol's members would be lost.
        encoder = loaded.model if isinstance(loaded.model, TextEncoder) else None
        self._n_scores = encoder.n_scores if encoder else 0
        self._knows_pairs = encoder is not None and encoder.n_token_types > 1
        self._default = model_pooling(metadata, encoder=loaded.is_encoder)
        self._pooling_key = metadata.key("pooling_type")
        # -- state --
        # A finaliser that runs in the middle of it may ask for embeddings too.
        self._counting = threading.RLock()
        self._waiting: list[EmbedJob] = []
        """The calls under way; one that was interrupted as it ended goes when the next one comes."""

    # -- calls ---------------------------------------------------------------------------------------------------------

    def embed(
        self, texts: Sequence[Prompt], pooling: Pooling | None, too_long: TooLong, dimensions: int | None, options:
        RequestOptions, *, normalize: bool, listed: bool = True,
    ) -> Pending[FloatArray]:  # fmt: skip
        """A call for one vector of each text. `listed`: errors tell the number of a text."""
        how, dim = self._checked(pooling, too_long, dimensions, normalize=normalize)
        if how == "none":
            raise ConfigError("with pooling none each token has a vector; those come from Engine.embeddings")
        found = Vectors(len(texts), dim, normalize=normalize)
        name = "texts" if listed else None
        cut = self._texts.alone(texts, how, too_long, name)
        result = (lambda: found.rows) if listed else (lambda: found.rows[0])
        return Pending(cut, len(texts), found, result, options, name, _is_short(texts), self)

    def embeddings(
        self, texts: Sequence[Prompt], pooling: Pooling | None, too_long: TooLong, dimensions: int | None, options:
        RequestOptions, *, normalize: bool,
    ) -> Pending[list[Embedding]]:  # fmt: skip
        """A call for an Embedding of each text."""
        how, dim = self._checked(pooling, too_long, dimensions, normalize=normalize)
        found = Embeddings(len(texts), dim, normalize=normalize)
        cut = self._texts.alone(texts, how, too_long, "texts")
        return Pending(cut, len(texts), found, found.all, options, "texts", _is_short(texts), self)

    def rank(
        self, query: str, documents: Sequence[str], too_long: TooLong, options: RequestOptions
    ) -> Pending[FloatArray]:
        """A call for the score of a query with each of the documents."""
        self._engine_thread.check_open()
        if self._n_scores != 1:
            has = f"gives {self._n_scores} scores" if self._n_scores else "has none"
            raise ConfigError(f"ranking takes an encoder with a classification head of one score; this model {has}")
        _check_options(too_long, True)
        if isinstance(documents, (str, bytes)) or not isinstance(documents, Iterable):
            raise ConfigError(f"documents are a list of texts, got {type(documents).__name__}")
        documents = list(documents)
        found = Vectors(len(documents), 1, normalize=False)
        cut = self._texts.pairs(query, documents, too_long, types=self._knows_pairs)
        short = _is_short([query, *documents])
        return Pending(cut, len(documents), found, lambda: found.rows[:, 0], options, "documents", short, self)

    @property
    def under_way(self) -> int:
        """Calls whose texts wait or are computed."""
        return sum(not job.over for job in self._waiting)

    @property
    def n_embd(self) -> int:
        """Length of a hidden state. Raises UnsupportedModelError for a model that does not show its own."""
        if self._n_embd is None:
            architecture = self._loaded.model.architecture
            raise UnsupportedModelError(f"architecture {architecture} gives no hidden states to embed texts by")
        return self._n_embd

    # -- handing in ----------------------------------------------------------------------------------------------------

    def register(self, job: EmbedJob) -> None:
        """Take a place in the queue, which is free again as soon as the job is over. Raises EngineBusyError."""
        limit = self._loaded.config.max_queue + 1
        with self._counting:
            self._waiting = [one for one in self._waiting if not one.over]
            if len(self._waiting) >= limit:
                self._monitor.metrics.embed_ended("rejected")
                told = f" is {limit - 1}, and as many calls for embeddings wait; try again later"
                raise EngineBusyError(Option("max_queue"), told)
            self._waiting.append(job)

    def leave(self, job: EmbedJob) -> None:
        """Its caller goes. What it found is held no longer, and what is not computed yet is taken back."""
        with self._counting:
            taken = job in self._waiting
            self._waiting = [one for one in self._waiting if not (one is job or one.over)]
        if taken and not job.ended:
            self.end(job, ClosedError("the call for embeddings was cancelled"))

    def end(self, job: EmbedJob, error: BaseException | None) -> None:
        """It ends with this as soon as the loop comes to it, unless it has ended."""
        self._engine_thread.post(Ending(self._queue, job, error))

    def feed(self, job: EmbedJob, texts: Iterator[Text]) -> None:
        """Hand in the texts in pieces, until nobody wants more. Raises what is wrong with one of them."""
        first, batch_size = 0, self._loaded.config.batch_size
        room, largest = (batches * batch_size for batches in PIECES)
        piece: list[Text] = []
        waiting = 0
        for text in texts:
            piece.append(text)
            waiting += len(text.tokens)
            if job.over:
                break
            if waiting >= room:
                self._engine_thread.do(Piece(self._queue, job, first, piece))
                first, piece, waiting, room = first + len(piece), [], 0, min(2 * room, largest)
        if piece:
            self._engine_thread.do(Piece(self._queue, job, first, piece))

    # -- options -------------------------------------------------------------------------------------------------------

    def _checked(
        self, pooling: Pooling | None, too_long: TooLong, dimensions: int | None, *, normalize: bool
    ) -> tuple[Pooling, int]:
        """How texts are pooled, and how many numbers of their vectors are kept."""
        self._engine_thread.check_open()
        how = self._chosen(pooling)
        _check_options(too_long, normalize)
        n_embd = self.n_embd
        return how, n_embd if dimensions is None else whole("dimensions", dimensions, 1, n_embd)

    def _chosen(self, pooling: Pooling | None) -> Pooling:
        encoder = self._loaded.is_encoder
        how = self._default if pooling is None else check_pooling(pooling)
        if how is None and not encoder:
            raise ConfigError(
                f"{self._pooling_key} names no way in which this model embeds texts; say which pooling: last or mean"
            )
        if how is None:
            raise ConfigError(
                "this model ranks documents (Engine.rank); for embeddings all the same, say which pooling"
            )
        if how == "rank":
            raise ConfigError("scores of pairs come from Engine.rank; pooling is none, mean, cls or last here")
        if how == "cls" and not encoder:
            raise ConfigError(
                Option("pooling"), " is cls, but the first token of this model has seen nothing else; use last or mean"
            )
        return how


def _raise(error: BaseException | None) -> None:
    try:
        if error is not None:
            raise error
    finally:
        del error  # which would hold this frame, and by it what was found


def _is_short(texts: Sequence[Prompt]) -> bool:
    """Whether they are cut into tokens within a moment."""
    return len(texts) <= AT_ONCE >> 6 and sum(len(text) for text in texts if hasattr(text, "__len__")) <= AT_ONCE


def _head_pooling(loaded: Loaded, metadata: Metadata) -> Pooling:
    """What the classification head reads: as the file says, or as the architecture has it."""
    if not isinstance(loaded.model, TextEncoder):
        return "last"
    said = read_pooling(metadata, "classifier.pooling_type")
    if said is None:
        return loaded.model.head_pooling
    if said not in ("cls", "mean"):
        raise UnsupportedModelError(f"{metadata.key('classifier.pooling_type')} is {said}; supported: cls, mean")
    return said


def _check_options(too_long: object, normalize: object) -> None:
    if too_long not in get_args(TooLong):
        known = ", ".join(get_args(TooLong))
        raise ConfigError(Option("on_overflow"), f" is one of {known} for embeddings, got {too_long!r}")
    if not isinstance(normalize, bool):
        raise ConfigError(Option("normalize"), f" is True or False, got {normalize!r}")
