"""GenerateMethods: an Engine's methods for answers, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar, overload

from ollama_engine.runner.core.generation_call import GenerationCall
from ollama_engine.runner.core.submission import Submission, check_forkable
from ollama_engine.runner.request.answer_count import AnswerCount
from ollama_engine.runner.request.answer_options import AnswerBesideFormat, AnswerKeywords, answer_options
from ollama_engine.runner.request.images import with_images, with_images_each
from ollama_engine.runner.request.prompts import Images, Prompt, Prompts, is_many
from ollama_engine.runner.request.request import Request
from ollama_engine.runner.request.results import Completion
from ollama_engine.runner.request.stream import Stream
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ollama_engine.runner.request.astream import AsyncStream  # asyncio: a program without it starts sooner

__all__ = ["GenerateMethods"]

T = TypeVar("T")


class GenerateMethods:
    """Prompts in, answers out; an Engine has all of this."""

    if TYPE_CHECKING:

        def _ready(self) -> Submission:
            """Where requests are handed in; Engine defines it. Raises ClosedError after `close`."""

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = ..., *, format: type[T], images: Images = ...,
        n: None = None, best_of: int | None = ..., **options: Unpack[AnswerBesideFormat],
    ) -> Completion[T]: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = ..., *, format: type[T], images: Images = ..., n: int,
        best_of: int | None = ..., **options: Unpack[AnswerBesideFormat],
    ) -> list[Completion[T]]: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Prompts, params: SamplingParams | None = ..., *, format: type[T],
        images: Sequence[Images] | None = ..., n: int | None = None, best_of: int | None = ...,
        **options: Unpack[AnswerBesideFormat],
    ) -> list[Completion[T]]: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = ..., *, images: Images = ..., n: None = None,
        best_of: int | None = ..., **options: Unpack[AnswerKeywords],
    ) -> Completion: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = ..., *, images: Images = ..., n: int,
        best_of: int | None = ..., **options: Unpack[AnswerKeywords],
    ) -> list[Completion]: ...  # fmt: skip
    @overload
    def generate(
        self, prompt: Prompts, params: SamplingParams | None = ..., *, images: Sequence[Images] | None = ...,
        n: int | None = None, best_of: int | None = ..., **options: Unpack[AnswerKeywords],
    ) -> list[Completion]: ...  # fmt: skip
    def generate(
        self, prompt: Prompt | Prompts, params: SamplingParams | None = None, *,
        images: Images | Sequence[Images] = None, n: int | None = None, best_of: int | None = None,
        **options: Unpack[AnswerKeywords],
    ) -> Completion | list[Completion]:  # fmt: skip
        """The whole answer to a prompt (text, or token ids as they are); a list or tuple of prompts gives a list.

        `n` asks for as many answers to each prompt, which share what is computed of it, and gives one flat list: those
        to the first prompt first. Where `params` have a seed, answer i of a prompt has `seed + i`. `best_of` writes as
        many, and returns the `n` (or one) with the highest `cumulative_logprob`, the best first.

        `images` (see `ImageSource`) stand where the text has markers: [img] is the next of them, [img-0] the first,
        [img-1] the second; without a marker they stand before the text. Several prompts have a list of images each.
        Nothing is read as a marker where there are no images.

        Keyword arguments: see `RequestKeywords`; and those of `SamplingParams` (`max_tokens=4`), which stand above
        `params`. Without either, the Modelfile's count where the model has one. The first answer of several that fails
        ends the call, and the others.

        Raises:
            ContextOverflowError: the prompt leaves no place for an answer, unless `on_overflow` says otherwise.
            TokenizerError: ids outside of the vocabulary, or text that it cannot express.
            ConfigError: a prompt without tokens (an empty text has one where the model adds BOS) or of another type;
                markers that do not match the images.
            UnsupportedInputError: images, where the model reads text only.
            ImageError: something that is no image, or one that the model cannot take.
            SamplingError: the model computes NaN, or every token is banned.
            EngineBusyError: too many requests wait.
            DeadlineError: `timeout` is over.
            ClosedError: the Engine is closed, before or meanwhile.
        """
        call, listed = self._generation(with_images_each(prompt, images), params, n, best_of, options)
        completions = call.wait()
        return completions if listed else completions[0]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, images: Images = None,
        **options: Unpack[AnswerKeywords],
    ) -> Stream:  # fmt: skip
        """The answer piece by piece; closing or dropping the iterator cancels the request at its next step.

        The request starts with this call, not with the first `next`. Raises as `generate` does; errors in the prompt
        raise here.
        """
        return self._generation(with_images(prompt, images), params, None, None, options)[0].stream(self)

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, images: Images = None,
        **options: Unpack[AnswerKeywords],
    ) -> Request:  # fmt: skip
        """Start a request and return at once; its `result()` waits. Raises as `stream` does."""
        return self._generation(with_images(prompt, images), params, None, None, options)[0].submit(self)

    def fork(
        self, request: Request, params: SamplingParams | None = None, **options: Unpack[AnswerKeywords]
    ) -> Request:
        """Forks a request: a new one continues from where it is, while it continues itself, or has ended.

        The fork's prompt is the prompt of `request` and the tokens of all chunks taken from it (`Request.tokens`).
        Their cells in the cache are shared, not copied; the answer is the one that this prompt gets alone. Where the
        first prompt is still to be computed, the fork waits for that. Parameters and options that are not given are
        those of `request`, but for `prompt_logprobs` and `truncate_prompt`. `max_tokens`, the seed, mirostat and
        adaptive-p start again from the beginning. A format goes on in the middle of the answer; another one begins with
        the fork, and a given `reasoning_budget` counts from it. Raises as `submit`, and ConfigError for a request of
        another Engine.
        """
        check_forkable(request, self)
        return self._ready().fork(request, params, options)

    @overload
    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = ..., *, format: type[T], images: Images = ...,
        n: None = None, best_of: int | None = ..., **options: Unpack[AnswerBesideFormat],
    ) -> Completion[T]: ...  # fmt: skip
    @overload
    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = ..., *, format: type[T], images: Images = ..., n: int,
        best_of: int | None = ..., **options: Unpack[AnswerBesideFormat],
    ) -> list[Completion[T]]: ...  # fmt: skip
    @overload
    async def agenerate(
        self, prompt: Prompts, params: SamplingParams | None = ..., *, format: type[T],
        images: Sequence[Images] | None = ..., n: int | None = None, best_of: int | None = ...,
        **options: Unpack[AnswerBesideFormat],
    ) -> list[Completion[T]]: ...  # fmt: skip
    @overload
    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = ..., *, images: Images = ..., n: None = None,
        best_of: int | None = ..., **options: Unpack[AnswerKeywords],
    ) -> Completion: ...  # fmt: skip
    @overload
    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = ..., *, images: Images = ..., n: int,
        best_of: int | None = ..., **options: Unpack[AnswerKeywords],
    ) -> list[Completion]: ...  # fmt: skip
    @overload
    async def agenerate(
        self, prompt: Prompts, params: SamplingParams | None = ..., *, images: Sequence[Images] | None = ...,
        n: int | None = None, best_of: int | None = ..., **options: Unpack[AnswerKeywords],
    ) -> list[Completion]: ...  # fmt: skip
    async def agenerate(
        self, prompt: Prompt | Prompts, params: SamplingParams | None = None, *,
        images: Images | Sequence[Images] = None, n: int | None = None, best_of: int | None = None,
        **options: Unpack[AnswerKeywords],
    ) -> Completion | list[Completion]:  # fmt: skip
        """`generate` for asyncio. Cancelling the task cancels the request."""
        call, listed = self._generation(with_images_each(prompt, images), params, n, best_of, options)
        completions = await call.coming()
        return completions if listed else completions[0]

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, images: Images = None,
        **options: Unpack[AnswerKeywords],
    ) -> AsyncStream:  # fmt: skip
        """`stream` for asyncio; call it where an event loop runs.

        Beside the loop, in a thread, a new `format` is compiled, and long texts and images are read; errors in them
        raise with the first chunk then.
        """
        return self._generation(with_images(prompt, images), params, None, None, options)[0].astream(self)

    def _generation(
        self, prompt: Prompt | Prompts, params: SamplingParams | None, n: int | None, best_of: int | None,
        keywords: AnswerKeywords,
    ) -> tuple[GenerationCall, bool]:  # fmt: skip
        """A call that is not handed in yet, and whether its caller gets a list."""
        submission = self._ready()
        params, options = answer_options(params, keywords, submission.loaded.defaults.params)
        call = GenerationCall(submission, prompt, params, options, AnswerCount.of(n, best_of, params))
        return call, n is not None or is_many(prompt)
