"""From texts to what the embedder computes, and from that to what callers get; EmbedDesk hands it in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ollama_engine.config import Pooling
from ollama_engine.errors import (
    ConfigError,
    ContextOverflowError,
    EngineBusyError,
    TokenizerError,
    UnsupportedModelError,
)
from ollama_engine.ml.metadata import Metadata
from ollama_engine.models import Embeds, Encoder, known_values
from ollama_engine.runner.embed_queue import EmbedJob, EmbedQueue
from ollama_engine.runner.embedder import Embedder, Text
from ollama_engine.runner.loading import Loaded
from ollama_engine.runner.loop import Loop
from ollama_engine.runner.pooling import FloatArray, check_pooling, default_pooling, finish, read_pooling
from ollama_engine.runner.prompts import Prompt, prompt_ids
from ollama_engine.runner.terms import whole

__all__ = ["EmbedDesk", "Embedding", "Pending", "TooLong"]

TooLong = Literal["error", "truncate"]


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
    """A job under way. `embeddings` makes what the caller gets of its vectors."""

    job: EmbedJob
    lengths: tuple[int, ...]
    """Of the texts as they came."""
    normalize: bool
    dimensions: int | None
    n_embd: int

    @property
    def future(self) -> Future[list[FloatArray]]:
        """What `embeddings`, `vectors` and `scores` take."""
        return self.job.future

    def wait(self) -> list[FloatArray]:
        """What the future gives; an interrupt cancels it. Raises what went wrong."""
        try:
            return self.future.result()
        except BaseException:
            self.future.cancel()
            raise

    async def coming(self) -> list[FloatArray]:
        """`wait` for asyncio."""
        return await asyncio.wrap_future(self.future)

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
    """Where texts are handed in, from any thread. Raises ConfigError, TokenizerError and the errors of `Loop.do`."""

    def __init__(self, loaded: Loaded, loop: Loop) -> None:
        metadata = known_values(loaded.gguf.metadata)
        self._loaded = loaded
        self._loop = loop
        self._said = read_pooling(metadata)
        self._queue = EmbedQueue(Embedder(loaded, _head_pooling(loaded, metadata)), loaded.config.batch_size)
        # A finaliser that runs in the middle of it may ask for embeddings too.
        self._counting = threading.RLock()
        self._jobs = 0

    def embed(
        self, texts: Sequence[Prompt], pooling: Pooling | None, too_long: TooLong, dimensions: int | None,
        *, normalize: bool, rows: bool = False,
    ) -> Pending:  # fmt: skip
        """Hand in texts. `rows`: a vector for each token will do."""
        self._loop.check_open()
        how = self._chosen(pooling)
        if how == "none" and not rows:
            raise ConfigError("with pooling none each token has a vector; those come from Engine.embeddings")
        _check_options(too_long, normalize)
        dimensions = None if dimensions is None else whole("dimensions", dimensions, 1, self.n_embd)
        found = [self._text(text, how, too_long) for text in texts]
        return self._start([text for text, _ in found], tuple(n for _, n in found), dimensions, normalize=normalize)

    def rank(self, query: str, documents: Sequence[str], too_long: TooLong) -> Pending:
        """Hand in a query with each of the documents."""
        self._loop.check_open()
        model = self._loaded.model
        if not isinstance(model, Encoder) or model.n_scores != 1:
            has = f"gives {model.n_scores} scores" if isinstance(model, Encoder) and model.n_scores else "has none"
            raise ConfigError(f"ranking takes an encoder with a classification head of one score; this model {has}")
        _check_options(too_long, True)
        if isinstance(documents, (str, bytes)) or not isinstance(documents, Iterable):
            raise ConfigError(f"documents are a list of texts, got {type(documents).__name__}")
        found = [self._pair(query, document, too_long, model) for document in documents]
        return self._start([text for text, _ in found], tuple(n for _, n in found), None, normalize=False)

    @property
    def n_embd(self) -> int:
        """Length of a hidden state. Raises UnsupportedModelError for a model that does not show its own."""
        model = self._loaded.model
        if not isinstance(model, Embeds):
            raise UnsupportedModelError(f"architecture {model.architecture} gives no hidden states to embed texts by")
        return model.n_embd

    def _chosen(self, pooling: Pooling | None) -> Pooling:
        encoder = isinstance(self._loaded.model, Encoder)
        how = default_pooling(self._said, encoder=encoder) if pooling is None else check_pooling(pooling)
        if how is None:
            raise ConfigError(
                "this model ranks documents (Engine.rank); for embeddings all the same, say which pooling"
            )
        if how == "rank":
            raise ConfigError("scores of pairs come from Engine.rank; pooling is none, mean, cls or last here")
        if how == "cls" and not encoder:
            raise ConfigError(
                "pooling is cls, but the first token of this model has seen nothing else; use last or mean"
            )
        return how

    def _start(
        self, texts: list[Text], lengths: tuple[int, ...], dimensions: int | None, *, normalize: bool
    ) -> Pending:
        job = EmbedJob(self._queue, texts)
        pending = Pending(job, lengths, normalize, dimensions, self.n_embd)
        if not texts:
            job.future.set_result([])
            return pending
        with self._counting:
            limit = self._loaded.config.max_queue + 1
            if self._jobs >= limit:
                raise EngineBusyError(
                    f"max_queue is {limit - 1}, and as many calls for embeddings wait; try again later"
                )
            self._jobs += 1
        job.future.add_done_callback(self._ended)
        try:
            self._loop.do(job)
        except BaseException:
            job.future.cancel()
            raise
        return pending

    def _ended(self, future: Future[list[FloatArray]]) -> None:
        with self._counting:
            self._jobs -= 1

    # -- tokens --------------------------------------------------------------------------------------------------------

    def _text(self, text: Prompt, pooling: Pooling, too_long: TooLong) -> tuple[Text, int]:
        ids = prompt_ids(self._loaded.tokenizer, text)
        self._check(ids)
        return Text(self._fitted(ids, too_long), pooling), len(ids)

    def _pair(self, query: str, document: str, too_long: TooLong, model: Encoder) -> tuple[Text, int]:
        """Begin, query, end, document, end: as BERT joins two texts."""
        tokenizer = self._loaded.tokenizer
        if not isinstance(query, str) or not isinstance(document, str):
            raise ConfigError("query and documents are texts (str)")
        first = tokenizer.encode(query)
        second = tokenizer.encode(document)
        # Both have the begin token; the second text keeps its end only.
        ids = first + second[1 if tokenizer.add_bos and tokenizer.bos_id is not None else 0 :]
        tokens = self._fitted(ids, too_long)
        typed = model.n_token_types > 1
        return Text(tokens, "rank", min(len(first), len(tokens)) if typed else None), len(ids)

    def _check(self, ids: Sequence[int]) -> None:
        n_vocab = self._loaded.model.n_vocab
        if not ids:
            raise ConfigError("a text has no tokens, and the model puts none before it; give at least one")
        bad = [token for token in ids if not 0 <= token < n_vocab]
        if bad:
            raise TokenizerError(f"token {bad[0]} is not in the vocabulary (0 to {n_vocab - 1})")

    def _fitted(self, ids: list[int], too_long: TooLong) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        limit = self._loaded.num_ctx
        if len(ids) > limit:
            if too_long == "error":
                raise ContextOverflowError(
                    f"a text has {len(ids)} tokens, but num_ctx is {limit}; shorten it, open the Engine with a larger "
                    'num_ctx where the model can take it, or let it be cut with on_overflow="truncate"'
                )
            # The token that ends a text stays.
            ends = self._loaded.tokenizer.add_eos and ids[-1] == self._loaded.tokenizer.eos_id
            ids = [*ids[: limit - 1], ids[-1]] if ends else ids[:limit]
        return np.array(ids, dtype=np.int32)


def _head_pooling(loaded: Loaded, metadata: Metadata) -> Pooling:
    """What the classification head reads: as the file says, or as the architecture has it."""
    said = read_pooling(metadata, "classifier.pooling_type")
    if said is None:
        return loaded.model.head_pooling if isinstance(loaded.model, Encoder) else "last"
    if said not in ("cls", "mean"):
        raise UnsupportedModelError(f"{metadata.key('classifier.pooling_type')} is {said}; supported: cls, mean")
    return said


def _check_options(too_long: object, normalize: object) -> None:
    if too_long not in get_args(TooLong):
        raise ConfigError(f"on_overflow is one of {', '.join(get_args(TooLong))} for embeddings, got {too_long!r}")
    if not isinstance(normalize, bool):
        raise ConfigError(f"normalize is True or False, got {normalize!r}")
