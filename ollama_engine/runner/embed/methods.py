"""EmbedMethods: the embedding and ranking methods of an Engine, for threads and for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ollama_engine.config import OneVector, Pooling
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.prompts import Prompt, Prompts, is_many

if TYPE_CHECKING:
    from ollama_engine.runner.core.engine_thread import EngineThread

    # A program that embeds nothing starts sooner without them.
    from ollama_engine.runner.embed.pooling import FloatArray
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.runner.embed.submission import EmbedSubmission
    from ollama_engine.runner.embed.texts import TooLong, Written
    from ollama_engine.runner.load.loading import Loaded
    from ollama_engine.segments import ImageSource

__all__ = ["EmbedMethods"]


class EmbedMethods:
    """Mixin of Engine. Texts of all callers are computed together, several in one graph."""

    if TYPE_CHECKING:
        _engine_thread: EngineThread

        def _open(self) -> Loaded:
            """The loaded model; Engine defines it. Raises ClosedError after `close`."""

    def __init__(self) -> None:
        super().__init__()
        # A finaliser that runs in the middle of making it may ask for embeddings too.
        self._making = threading.RLock()
        self._embed_submission: EmbedSubmission | None = None

    def _embedding(self) -> EmbedSubmission:
        loaded = self._open()
        with self._making:
            if self._embed_submission is None:
                from ollama_engine.runner.embed.submission import EmbedSubmission  # noqa: PLC0415 (see above)

                self._embed_submission = EmbedSubmission(loaded, self._engine_thread)
            return self._embed_submission

    def embed(
        self, texts: Prompt | Prompts, *, normalize: bool = True, dimensions: int | None = None,
        pooling: OneVector | None = None, on_overflow: TooLong = "error",
        prompt_name: str | None = None, task: str | None = None, priority: int = 0, timeout: float | None = None,
    ) -> FloatArray:  # fmt: skip
        """Embeddings of texts: float32 [n, dim] for a list or tuple of them, [dim] for one.

        A text is a str, token ids (a list, tuple or array of whole numbers, used unchanged), or a list of segments.
        With models that read images, segments may be `Media`; with CLIP and SigLIP an image stands alone, [Media(...)].

        Args:
            texts: texts to embed. Some models want them to begin with their purpose ("query: "): see `prompt_name`.
            normalize: whether vectors get length 1, so that their products are cosines.
            dimensions: how many numbers of each vector to keep, before it is normalized; for models that were trained
                for shortened vectors (Matryoshka).
            pooling: "mean", "cls" (the first token's) or "last". None uses the pooling of the model's file, or without
                one "mean" for encoders and "last" for generative models.
            on_overflow: for a text of more than num_ctx tokens: "error" raises ContextOverflowError, "truncate" drops
                its end; `embeddings` counts the dropped tokens.
            prompt_name: the name of the text that comes before each, such as "query", in files with such prompts. None
                takes the file's default, "" no prompt. Token ids get none.
            task: the name of the adapter that computes the texts, in models that have such (Jina 3); the prompt of this
                name comes before each, if there is one and `prompt_name` is None.
            priority: higher is served first; no call starves.
            timeout: seconds after which the call ends with DeadlineError. None: never.

        Raises ContextOverflowError; TokenizerError for ids outside of the vocabulary and text that it cannot express;
        ConfigError for options out of range, a text without tokens, and a model that only ranks. Raises ComputeError
        when the model computes NaN, EngineBusyError when too many calls wait, DeadlineError when `timeout` is over,
        and ClosedError when the Engine is closed.
        """
        many, listed = _listed(texts)
        submission = self._embedding()
        pending = submission.embed(
            many, pooling, on_overflow, dimensions, RequestOptions(priority=priority, timeout=timeout),
            normalize=normalize, purpose=submission.prompts.purpose(prompt_name, task),
            name="texts" if listed else None,
        )  # fmt: skip
        return pending.wait()

    def embeddings(
        self, texts: Prompts, *, normalize: bool = True, dimensions: int | None = None,
        pooling: Pooling | None = None, on_overflow: TooLong = "error",
        prompt_name: str | None = None, task: str | None = None, priority: int = 0, timeout: float | None = None,
    ) -> list[Embedding]:  # fmt: skip
        """`embed` for a list, with the number of tokens of each text, and of those that were dropped.

        With pooling "none" the vector of a text is an array [n_tokens, dim], one row for each token.
        """
        submission = self._embedding()
        pending = submission.embeddings(
            _listed(texts)[0], pooling, on_overflow, dimensions, RequestOptions(priority=priority, timeout=timeout),
            normalize=normalize, purpose=submission.prompts.purpose(prompt_name, task),
        )  # fmt: skip
        return pending.wait()

    async def aembed(
        self, texts: Prompt | Prompts, *, normalize: bool = True, dimensions: int | None = None,
        pooling: OneVector | None = None, on_overflow: TooLong = "error",
        prompt_name: str | None = None, task: str | None = None, priority: int = 0, timeout: float | None = None,
    ) -> FloatArray:  # fmt: skip
        """`embed` for asyncio: the same arguments, result and errors. Cancelling the task cancels the request."""
        many, listed = _listed(texts)
        submission = self._embedding()
        pending = submission.embed(
            many, pooling, on_overflow, dimensions, RequestOptions(priority=priority, timeout=timeout),
            normalize=normalize, purpose=submission.prompts.purpose(prompt_name, task),
            name="texts" if listed else None,
        )  # fmt: skip
        return await pending.coming()

    async def aembeddings(
        self, texts: Prompts, *, normalize: bool = True, dimensions: int | None = None,
        pooling: Pooling | None = None, on_overflow: TooLong = "error",
        prompt_name: str | None = None, task: str | None = None, priority: int = 0, timeout: float | None = None,
    ) -> list[Embedding]:  # fmt: skip
        """`embeddings` for asyncio: the same arguments, result and errors. Cancelling the task cancels the request."""
        submission = self._embedding()
        pending = submission.embeddings(
            _listed(texts)[0], pooling, on_overflow, dimensions, RequestOptions(priority=priority, timeout=timeout),
            normalize=normalize, purpose=submission.prompts.purpose(prompt_name, task),
        )  # fmt: skip
        return await pending.coming()

    def embed_image(
        self, images: ImageSource | Sequence[ImageSource], *, normalize: bool = True, priority: int = 0,
        timeout: float | None = None,
    ) -> FloatArray:  # fmt: skip
        """Vectors of images: float32 [n, dim] for a list or tuple of them, [dim] for one.

        The same as `embed` of texts that are an image each, `[Media(image)]`.

        Args:
            images: a path, the bytes of a file, a PIL.Image or an array [height, width, 3]; or several of them.
            normalize: whether vectors get length 1, so that their products are cosines.
            priority: higher is served first; no call starves.
            timeout: seconds after which the call ends with DeadlineError. None: never.

        Raises ImageError for what is no image, UnsupportedModelError for a model that reads none, and what `embed`
        raises.
        """
        options = RequestOptions(priority=priority, timeout=timeout)
        return self._embedding().images(images, options, normalize=normalize).wait()

    async def aembed_image(
        self, images: ImageSource | Sequence[ImageSource], *, normalize: bool = True, priority: int = 0,
        timeout: float | None = None,
    ) -> FloatArray:  # fmt: skip
        """`embed_image` for asyncio: the same arguments, result and errors. Cancelling the task cancels the request."""
        options = RequestOptions(priority=priority, timeout=timeout)
        return await self._embedding().images(images, options, normalize=normalize).coming()

    def rank(
        self, query: Written, documents: Sequence[Written], *, on_overflow: TooLong = "error", priority: int = 0,
        timeout: float | None = None,
    ) -> FloatArray:  # fmt: skip
        """How well each document answers a query: the model's own scores, float32 [n], higher is better.

        For rerankers (cross-encoders), which read a query and a document as one text. With Qwen3-VL-Reranker both may
        be lists of segments with `Media` in them. "truncate" drops the end of long documents, never of the query.
        Raises as `embed` does, and ConfigError for a model without a classification head of one score.
        """
        options = RequestOptions(priority=priority, timeout=timeout)
        return self._embedding().rank(query, documents, on_overflow, options).wait()

    async def arank(
        self, query: Written, documents: Sequence[Written], *, on_overflow: TooLong = "error", priority: int = 0,
        timeout: float | None = None,
    ) -> FloatArray:  # fmt: skip
        """`rank` for asyncio: the same arguments, result and errors. Cancelling the task cancels the request."""
        options = RequestOptions(priority=priority, timeout=timeout)
        return await self._embedding().rank(query, documents, on_overflow, options).coming()


def _listed(texts: Prompt | Prompts) -> tuple[list[Prompt], bool]:
    """A list of texts, and whether it was several; an empty list or tuple is no text."""
    if is_many(texts) or (isinstance(texts, (list, tuple)) and not texts):
        return list(texts), True
    return [cast(Prompt, texts)], False
