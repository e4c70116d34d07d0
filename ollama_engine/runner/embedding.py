"""From texts to what the embedder computes, and from that to what callers get; EmbedDesk hands it in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ollama_engine.config import Pooling
from ollama_engine.errors import (
    ConfigError,
    ContextOverflowError,
    EngineBusyError,
    Option,
    TokenizerError,
    UnsupportedModelError,
)
from ollama_engine.ml.metadata import Metadata
from ollama_engine.models import Embeds, TextEncoder, known_values
from ollama_engine.runner.embed_queue import EmbedJob, EmbedQueue
from ollama_engine.runner.embedder import Embedder, Text
from ollama_engine.runner.loading import Loaded
from ollama_engine.runner.loop import Loop
from ollama_engine.runner.pooling import FloatArray, check_pooling, finish, model_pooling, read_pooling
from ollama_engine.runner.prompts import Prompt, about_one, prompt_ids
from ollama_engine.runner.terms import whole

__all__ = ["EmbedDesk", "Embedding", "Pending", "TooLong"]

TooLong = Literal["error", "truncate"]

NUM_CTX = Option("num_ctx")


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


@dataclass(frozen=True, eq=False)
class Pending:
    """A job that `wait` or `coming` hands in. `embeddings` makes what the caller gets of its vectors."""

    job: EmbedJob
    lengths: tuple[int, ...]
    """Of the texts as they came."""
    normalize: bool
    dimensions: int | None
    n_embd: int
    hand_in: Callable[[EmbedJob], None]

    @property
    def future(self) -> Future[list[FloatArray]]:
        """What `embeddings`, `vectors` and `scores` take."""
        return self.job.future

    def wait(self) -> list[FloatArray]:
        """Hand the job in, and what comes of it; an interrupt takes it back. Raises what went wrong."""
        try:
            self.hand_in(self.job)
            return self.future.result()
        except BaseException:
            self.future.cancel()
            raise

    async def coming(self) -> list[FloatArray]:
        """`wait` for asyncio."""
        try:
            self.hand_in(self.job)
            return await asyncio.wrap_future(self.future)
        except BaseException:
            self.future.cancel()
            raise

    def embeddings(self, vectors: list[FloatArray]) -> list[Embedding]:
        """Cut and normalized, with what is known of each text."""
        return [
            Embedding(finish(vector, self.dimensions, normalize=self.normalize), n, n - len(text.tokens))
            for vector, n, text in zip(vectors, self.lengths, self.job.texts, strict=True)
        ]

    def vectors(self, vectors: list[FloatArray], *, one: bool) -> FloatArray:
        """All in one array [n, dim], or [dim] of the only one."""
        found = np.stack(vectors) if vectors else np.empty((0, self.n_embd), dtype=np.float32)
        done = finish(found, self.dimensions, normalize=self.normalize)
        return done[0] if one else done

    def scores(self, rows: list[FloatArray]) -> FloatArray:
        """The only score of each text, [n]."""
        return np.concatenate(rows) if rows else np.empty(0, dtype=np.float32)


class EmbedDesk:
    """Where texts are handed in, from any thread. Raises ConfigError, TokenizerError and the errors of `Loop.do`.

    What is made here takes no place in the queue before it is waited for.
    """

    def __init__(self, loaded: Loaded, loop: Loop) -> None:
        metadata = known_values(loaded.gguf.metadata)
        self._loaded = loaded
        self._loop = loop
        self._n_embd = loaded.model.n_embd if isinstance(loaded.model, Embeds) else None
        self._default = model_pooling(metadata, encoder=loaded.is_encoder)
        self._pooling_key = metadata.key("pooling_type")
        self._queue = EmbedQueue(Embedder(loaded, _head_pooling(loaded, metadata)), loaded.config.batch_size)
        # A finaliser that runs in the middle of it may ask for embeddings too.
        self._counting = threading.RLock()
        self._waiting: list[Future[list[FloatArray]]] = []
        """Of the calls under way; those that have ended go when the next one comes."""

    def embed(
        self, texts: Sequence[Prompt], pooling: Pooling | None, too_long: TooLong, dimensions: int | None,
        *, normalize: bool, rows: bool = False, listed: bool = True,
    ) -> Pending:  # fmt: skip
        """A job of texts. `rows`: a vector for each token will do. `listed`: errors tell the number of a text."""
        self._loop.check_open()
        how = self._chosen(pooling)
        if how == "none" and not rows:
            raise ConfigError("with pooling none each token has a vector; those come from Engine.embeddings")
        _check_options(too_long, normalize)
        dimensions = None if dimensions is None else whole("dimensions", dimensions, 1, self.n_embd)
        name = "texts" if listed else None
        found = []
        for number, text in enumerate(texts):
            with about_one(name, number):
                found.append(self._text(text, how, too_long))
        return self._pending(found, dimensions, name, normalize=normalize)

    def rank(self, query: str, documents: Sequence[str], too_long: TooLong) -> Pending:
        """A job of a query with each of the documents."""
        self._loop.check_open()
        model = self._loaded.model
        if not isinstance(model, TextEncoder) or model.n_scores != 1:
            has = f"gives {model.n_scores} scores" if isinstance(model, TextEncoder) and model.n_scores else "has none"
            raise ConfigError(f"ranking takes an encoder with a classification head of one score; this model {has}")
        _check_options(too_long, True)
        if isinstance(documents, (str, bytes)) or not isinstance(documents, Iterable):
            raise ConfigError(f"documents are a list of texts, got {type(documents).__name__}")
        first = self._query(query)
        found = []
        for number, document in enumerate(documents):
            with about_one("documents", number):
                found.append(self._pair(first, document, too_long, model))
        return self._pending(found, None, "documents", normalize=False)

    @property
    def under_way(self) -> int:
        """Calls whose texts wait or are computed."""
        return sum(not future.done() for future in self._waiting)

    @property
    def n_embd(self) -> int:
        """Length of a hidden state. Raises UnsupportedModelError for a model that does not show its own."""
        if self._n_embd is None:
            architecture = self._loaded.model.architecture
            raise UnsupportedModelError(f"architecture {architecture} gives no hidden states to embed texts by")
        return self._n_embd

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

    def _pending(
        self, found: list[tuple[Text, int]], dimensions: int | None, name: str | None, *, normalize: bool
    ) -> Pending:
        job = EmbedJob(self._queue, [text for text, _ in found], name)
        return Pending(job, tuple(n for _, n in found), normalize, dimensions, self.n_embd, self._hand_in)

    def _hand_in(self, job: EmbedJob) -> None:
        """Interrupted anywhere, it leaves a place that is free again as soon as the future is cancelled."""
        if not job.texts:
            job.future.set_result([])
            return
        limit = self._loaded.config.max_queue + 1
        with self._counting:
            self._waiting = [future for future in self._waiting if not future.done()]
            if len(self._waiting) >= limit:
                raise EngineBusyError(
                    Option("max_queue"), f" is {limit - 1}, and as many calls for embeddings wait; try again later"
                )
            self._waiting.append(job.future)
        self._loop.do(job)

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _text(self, text: Prompt, pooling: Pooling, too_long: TooLong) -> tuple[Text, int]:
        ids = prompt_ids(self._loaded.tokenizer, text)
        self._check(ids)
        fitted = self._fitted(ids, self._loaded.num_ctx, too_long)
        return Text(np.array(fitted, dtype=np.int32), pooling), len(ids)

    def _query(self, query: str) -> list[int]:
        if not isinstance(query, str):
            raise ConfigError(f"query and documents are texts (str), got {type(query).__name__}")
        ids = self._loaded.tokenizer.encode(query)
        if ids:
            self._check(ids)
        return ids

    def _pair(self, first: list[int], document: str, too_long: TooLong, model: TextEncoder) -> tuple[Text, int]:
        """Begin, query, end, document, end: as BERT joins two texts; `first` are the first three."""
        tokenizer = self._loaded.tokenizer
        if not isinstance(document, str):
            raise ConfigError(f"query and documents are texts (str), got {type(document).__name__}")
        second = tokenizer.encode(document)
        # Both have the begin token; the second text keeps its end only.
        second = second[1 if tokenizer.add_bos and tokenizer.bos_id is not None else 0 :]
        self._check(first + second)
        cut = self._fitted(second, self._loaded.num_ctx - len(first), too_long, f"after a query of {len(first)}, ")
        tokens = np.array(first + cut, dtype=np.int32)
        return Text(tokens, "rank", len(first) if model.n_token_types > 1 else None), len(first) + len(second)

    def _check(self, ids: Sequence[int]) -> None:
        n_vocab = self._loaded.model.n_vocab
        if not ids:
            raise ConfigError("a text has no tokens, and the model puts none before it; give at least one")
        bad = [token for token in ids if not 0 <= token < n_vocab]
        if bad:
            raise TokenizerError(f"token {bad[0]} is not in the vocabulary (0 to {n_vocab - 1})")

    def _fitted(self, ids: list[int], room: int, too_long: TooLong, after: str = "") -> list[int]:
        """The first `room` tokens, of which an end token is the last."""
        if len(ids) <= room:
            return ids
        limit = self._loaded.num_ctx
        if too_long == "error":
            raise ContextOverflowError(
                f"{after}a text has {len(ids)} tokens, but ",
                NUM_CTX,
                f" is {limit}",
                advice=[
                    "shorten it",
                    ("choose a larger ", NUM_CTX, " where the model can take it"),
                    ("let it be cut with ", Option("on_overflow", "truncate")),
                ],
            )
        end = ids[-1:] if self._loaded.tokenizer.add_eos and ids[-1] == self._loaded.tokenizer.eos_id else []
        if room <= len(end):
            raise ContextOverflowError(
                f"{after}no token of a text has room, for ",
                NUM_CTX,
                f" is {limit}",
                advice=["shorten what comes before it", ("choose a larger ", NUM_CTX)],
            )
        return [*ids[: room - len(end)], *end]


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
        raise ConfigError(
            Option("on_overflow"), f" is one of {', '.join(get_args(TooLong))} for embeddings, got {too_long!r}"
        )
    if not isinstance(normalize, bool):
        raise ConfigError(Option("normalize"), f" is True or False, got {normalize!r}")
