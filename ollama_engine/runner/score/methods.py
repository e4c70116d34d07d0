"""ScoreMethods: what an Engine offers of scoring, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast, overload

from ollama_engine.runner.request.images import with_images
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.prompts import Images, Prompt, is_many

if TYPE_CHECKING:
    from ollama_engine.input import FloatArray
    from ollama_engine.runner.core.submission import Submission

    # A program that scores nothing starts sooner without them.
    from ollama_engine.runner.score.call import ScoreCall
    from ollama_engine.runner.score.results import Score
    from ollama_engine.runner.score.seam import Continuation

__all__ = ["ScoreMethods"]


class ScoreMethods:
    """How probable continuations of a prompt are, and its logits; an Engine has all of this."""

    if TYPE_CHECKING:

        def _ready(self) -> Submission:
            """Where requests are handed in; Engine defines it. Raises ClosedError after `close`."""

    @overload
    def score(
        self, prompt: Prompt, continuations: Continuation, *, images: Images = ...,
        priority: int = ..., timeout: float | None = ..., cache_salt: str | None = ...,
    ) -> Score: ...  # fmt: skip
    @overload
    def score(
        self, prompt: Prompt, continuations: list[str] | tuple[str, ...] | list[list[int]] | list[Continuation], *,
        images: Images = ..., priority: int = ..., timeout: float | None = ..., cache_salt: str | None = ...,
    ) -> list[Score]: ...  # fmt: skip
    def score(
        self, prompt: Prompt, continuations: Continuation | Sequence[Continuation], *, images: Images = None,
        priority: int = 0, timeout: float | None = None, cache_salt: str | None = None,
    ) -> Score | list[Score]:  # fmt: skip
        """How probable each continuation is after a prompt; a list or tuple of them gives a list, one gives one.

        The prompt, and whatever else continuations begin with alike, is computed once, or taken from the cache. Nothing
        is sampled. For a multiple choice, take the continuation of the highest `logprob`.

        Args:
            prompt: text, token ids, or segments, as `generate` takes it.
            continuations: texts, or lists of token ids that are scored as they are. The tokens of a text are those of
                prompt + continuation behind those of the prompt. White space at the end of a prompt counts as the
                continuation's ("A:" + " yes" has better tokens than "A: " + "yes"); see `docs/scoring.md`.
            images: as in `generate`.
            priority: higher is served first; nobody starves.
            timeout: seconds from the call after which it ends with DeadlineError. None: never.
            cache_salt: see `RequestKeywords`.

        Raises ContextOverflowError where prompt and continuation have more than num_ctx tokens, and TokenizerError for
        ids outside of the vocabulary and text that it cannot express. Raises ConfigError for a prompt or continuation
        without tokens, options out of range, and a model that only reads. Raises SamplingError when the model computes
        NaN; EngineBusyError, DeadlineError and ClosedError as `generate` does.
        """
        options = RequestOptions(priority=priority, timeout=timeout, cache_salt=cache_salt)
        call, listed = self._scoring(with_images(prompt, images), continuations, options)
        scores = call.wait()
        return scores if listed else scores[0]

    @overload
    async def ascore(
        self, prompt: Prompt, continuations: Continuation, *, images: Images = ...,
        priority: int = ..., timeout: float | None = ..., cache_salt: str | None = ...,
    ) -> Score: ...  # fmt: skip
    @overload
    async def ascore(
        self, prompt: Prompt, continuations: list[str] | tuple[str, ...] | list[list[int]] | list[Continuation], *,
        images: Images = ..., priority: int = ..., timeout: float | None = ..., cache_salt: str | None = ...,
    ) -> list[Score]: ...  # fmt: skip
    async def ascore(
        self, prompt: Prompt, continuations: Continuation | Sequence[Continuation], *, images: Images = None,
        priority: int = 0, timeout: float | None = None, cache_salt: str | None = None,
    ) -> Score | list[Score]:  # fmt: skip
        """`score` for asyncio: the same arguments, result and errors. Cancelling the task cancels the call."""
        options = RequestOptions(priority=priority, timeout=timeout, cache_salt=cache_salt)
        call, listed = self._scoring(with_images(prompt, images), continuations, options)
        scores = await call.coming()
        return scores if listed else scores[0]

    def logits(self, prompt: Prompt, *, images: Images = None) -> FloatArray:
        """The model's raw output at every token of a prompt, float32 [n_tokens, n_vocab].

        Row i scores what follows input i; an image has an input for each of its embeddings, and the tokens around them.
        `images` and errors are as in `generate`.
        """
        from ollama_engine.runner.score.call import LogitsCall  # noqa: PLC0415 (see above)

        return LogitsCall(self._ready(), with_images(prompt, images)).wait()

    def _scoring(
        self, prompt: Prompt, continuations: Continuation | Sequence[Continuation], options: RequestOptions
    ) -> tuple[ScoreCall, bool]:
        """A call that is not handed in yet, and whether several continuations were given."""
        from ollama_engine.runner.score.call import ScoreCall  # noqa: PLC0415 (see above)

        submission = self._ready()
        is_empty = isinstance(continuations, (list, tuple)) and not continuations
        listed = is_empty or is_many(cast(Prompt, continuations))
        given = cast("list[Continuation]", list(continuations) if listed else [continuations])
        return ScoreCall(submission, prompt, given, options, "continuations" if listed else None), listed
