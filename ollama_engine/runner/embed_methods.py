"""EmbedMethods: what an Engine offers of embeddings and ranking, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard, cast

from ollama_engine.config import OneVector, Pooling
from ollama_engine.runner.desk import Desk
from ollama_engine.runner.prompts import Prompt, Prompts, is_many

if TYPE_CHECKING:
    # A program that embeds nothing starts sooner without them.
    from ollama_engine.runner.embedding import Embedding, TooLong
    from ollama_engine.runner.pooling import FloatArray

__all__ = ["EmbedMethods"]


class EmbedMethods:
    """Texts of all callers are computed together, several in one graph; an Engine has all of this."""

    if TYPE_CHECKING:

        def _ready(self) -> Desk:
            """The desk of an Engine that is open."""

    def embed(
        self, texts: Prompt | Prompts, *, normalize: bool = True, dimensions: int | None = None,
        pooling: OneVector | None = None, on_overflow: TooLong = "error",
    ) -> FloatArray:  # fmt: skip
        """Embeddings of texts (or token ids): float32 [n, dim] for a list or tuple, [dim] for one text.

        Args:
            texts: what to embed. Some models want a text to begin with its purpose ("query: "): see their description.
            normalize: whether vectors get length 1, so that their products are cosines.
            dimensions: how many numbers of each vector to keep, before it is normalized; for models that were trained
                to have their vectors cut (Matryoshka).
            pooling: "mean", "cls" (the first token's) or "last". None takes what the model's file says; where it does
                not say, "mean" for encoders and "last" for models that write.
            on_overflow: what happens to a text of more than num_ctx tokens: "error" raises ContextOverflowError,
                "truncate" leaves its end out, and `embeddings` tells how much of it.

        Raises ContextOverflowError; TokenizerError for ids outside of the vocabulary and text that it cannot express;
        ConfigError for options out of range, a text without tokens, and a model that only ranks; ComputeError when
        the model computes NaN; EngineBusyError when too many calls wait; ClosedError when the Engine is closed.
        """
        listed = _are_many(texts)
        pending = self._ready().embeddings.embed(
            _listed(texts), pooling, on_overflow, dimensions, normalize=normalize, listed=listed
        )
        return pending.vectors(pending.wait(), one=not listed)

    def embeddings(
        self, texts: Prompts, *, normalize: bool = True, dimensions: int | None = None,
        pooling: Pooling | None = None, on_overflow: TooLong = "error",
    ) -> list[Embedding]:  # fmt: skip
        """`embed` for a list, with how many tokens each text has, and how many of them were dropped.

        With pooling "none" the vector of a text is an array [n_tokens, dim], one row for each token.
        """
        listed = _listed(texts)
        pending = self._ready().embeddings.embed(
            listed, pooling, on_overflow, dimensions, normalize=normalize, rows=True
        )
        return pending.embeddings(pending.wait())

    async def aembed(
        self, texts: Prompt | Prompts, *, normalize: bool = True, dimensions: int | None = None,
        pooling: OneVector | None = None, on_overflow: TooLong = "error",
    ) -> FloatArray:  # fmt: skip
        """`embed` for asyncio. Cancelling the task takes back what is not computed yet."""
        listed = _are_many(texts)
        pending = self._ready().embeddings.embed(
            _listed(texts), pooling, on_overflow, dimensions, normalize=normalize, listed=listed
        )
        return pending.vectors(await pending.coming(), one=not listed)

    async def aembeddings(
        self, texts: Prompts, *, normalize: bool = True, dimensions: int | None = None,
        pooling: Pooling | None = None, on_overflow: TooLong = "error",
    ) -> list[Embedding]:  # fmt: skip
        """`embeddings` for asyncio."""
        listed = _listed(texts)
        pending = self._ready().embeddings.embed(
            listed, pooling, on_overflow, dimensions, normalize=normalize, rows=True
        )
        return pending.embeddings(await pending.coming())

    def rank(self, query: str, documents: Sequence[str], *, on_overflow: TooLong = "error") -> FloatArray:
        """How well each document answers a query: scores float32 [n], the higher the better, as the model gives them.

        For rerankers (cross-encoders): a query and a document are read as one text. "truncate" leaves the end of long
        documents out, and nothing of the query. Raises as `embed` does, and ConfigError for a model without a
        classification head of one score.
        """
        pending = self._ready().embeddings.rank(query, documents, on_overflow)
        return pending.scores(pending.wait())

    async def arank(self, query: str, documents: Sequence[str], *, on_overflow: TooLong = "error") -> FloatArray:
        """`rank` for asyncio."""
        pending = self._ready().embeddings.rank(query, documents, on_overflow)
        return pending.scores(await pending.coming())


def _are_many(texts: object) -> TypeGuard[Sequence[Prompt]]:
    """As `is_many`; an empty list or tuple is no text."""
    return is_many(cast(Prompt, texts)) or (isinstance(texts, (list, tuple)) and not texts)


def _listed(texts: Prompt | Prompts) -> list[Prompt]:
    return list(texts) if _are_many(texts) else [cast(Prompt, texts)]
