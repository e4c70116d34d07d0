"""Submission: makes requests from callers' arguments and submits them to the engine thread, one or several at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING

from ollama_engine.errors import ConfigError
from ollama_engine.input import FloatArray
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.core.fork_options import NOTHING_YET, Answered, fork_options
from ollama_engine.runner.core.input_processor import new_generation, new_scoring, prompt_inputs, refuse_media
from ollama_engine.runner.core.reasoning import budgeted_reasoning
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.request.answer_count import AnswerCount
from ollama_engine.runner.request.channel import Event, RequestChannel, arun_or_cancel, result_of, run_or_cancel
from ollama_engine.runner.request.group import Numbered, RequestGroup
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestKeywords, RequestOptions
from ollama_engine.runner.request.preparing import Preparing
from ollama_engine.runner.request.prompts import (
    SEVERAL,
    Prompt,
    Prompts,
    about_one,
    check_params,
    has_media,
    is_long,
    is_many,
    many,
)
from ollama_engine.runner.request.reasoning import ReasoningBudget
from ollama_engine.runner.request.request import Request
from ollama_engine.runner.request.results import Completion
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.steering import Constraint
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from ollama_engine.sample.constraints.compiler import GrammarCompiler

__all__ = ["Submission"]


class Submission:
    """A loaded model and the thread that serves it. It does not refer to the Engine, so the Engine can be collected."""

    def __init__(self, loaded: Loaded, thread: EngineThread) -> None:
        self.loaded = loaded
        self.thread = thread
        self._grammars: GrammarCompiler | None = None
        self._making = Lock()

    def inputs(
        self, prompt: Prompt, preparing: Preparing | None = None, *, add_special: bool = True, several: str = SEVERAL
    ) -> Inputs:
        """The inputs of a prompt. `several`: hint shown when several prompts are passed.

        Raises what `preparing` says, and errors about the prompt; but ClosedError first, because a closed engine has no
        tokenizer.
        """
        self.thread.check_open()
        checkpoint = None if preparing is None else preparing.check
        return prompt_inputs(self.loaded, prompt, add_special=add_special, several=several, checkpoint=checkpoint)

    def start(
        self, inputs: Inputs, params: SamplingParams, options: RequestOptions, channel: RequestChannel, *,
        follows: Generation | None = None, show_special: bool = False, answered: Answered = NOTHING_YET,
        preparing: Preparing | None = None,
    ) -> Generation:  # fmt: skip
        """Submit one request. Raises errors about its arguments, and as `EngineThread.submit` does.

        `show_special`: control tokens of the answer are part of its text. `answered`: see `make`.
        """
        made = self.make(
            inputs, params, options, channel, follows=follows, show_special=show_special, answered=answered,
            preparing=preparing,
        )  # fmt: skip
        self.thread.submit(made)
        return made

    def starter(
        self, prompt: Prompt, params: SamplingParams, options: RequestOptions, channel: RequestChannel,
        preparing: Preparing, *, show_special: bool = False,
    ) -> Callable[[], Generation]:  # fmt: skip
        """A function that `start`s one request; call it in a thread where `takes_long` says so.

        Long texts and images are read by that call; errors in any other prompt raise here.
        """
        start = partial(self.start, preparing=preparing, show_special=show_special)
        if not _takes_long_to_read(prompt):
            return partial(start, self.inputs(prompt, preparing), params, options, channel)
        self.thread.check_open()
        if has_media(prompt):
            refuse_media(self.loaded)

        def read_and_start() -> Generation:
            return start(self.inputs(prompt, preparing), params, options, channel)

        return read_and_start

    def make(
        self, inputs: Inputs, params: SamplingParams, options: RequestOptions, channel: RequestChannel, *,
        follows: Generation | None = None, pinned: PinnedPrefix | None = None, show_special: bool = False,
        answered: Answered = NOTHING_YET, preparing: Preparing | None = None,
    ) -> Generation:  # fmt: skip
        """Make a request without submitting it. Raises errors about its arguments.

        `answered`: the end of `inputs` that its answer begins with.
        """
        made = new_generation(
            self.loaded, inputs, params, options, channel, follows=follows, pinned=pinned, show_special=show_special,
            constraint=self._constraint(options, answered),
        )  # fmt: skip
        if preparing is not None:
            preparing.mark(made)
        return made

    def _constraint(self, options: RequestOptions, answered: Answered) -> Constraint | None:
        """The constraint of an answer, of which `answered` has come."""
        budget, form = options.reasoning_budget, options.format
        if budget is None:
            return None if form is None else self._compiler().constraint(form, answered.tokens)
        of_answer = None if form is None else partial(self._compiler().constraint, form)
        budget = budget if isinstance(budget, ReasoningBudget) else ReasoningBudget(budget)
        return budgeted_reasoning(self.loaded, budget, answered.tokens, of_answer, uncounted=answered.uncounted)

    def takes_long(self, options: RequestOptions, prompt: Prompt | Prompts) -> bool:
        """Whether starting a request is work for which no event loop should wait: long texts, images, a new format."""
        form, grammars = options.format, self._grammars
        return _takes_long_to_read(prompt) or (form is not None and (grammars is None or not grammars.knows(form)))

    def _compiler(self) -> GrammarCompiler:
        from ollama_engine.sample.constraints.compiler import GrammarCompiler  # noqa: PLC0415 (few ask for a format)

        with self._making:
            if self._grammars is None:
                n_vocab = min(self.loaded.model.n_vocab, self.loaded.tokenizer.n_vocab)
                self._grammars = GrammarCompiler(self.loaded.tokenizer, n_vocab)
            return self._grammars

    def hand_in(self, request: Request, prompt: Prompt, params: SamplingParams, keywords: RequestKeywords) -> None:
        """Start a request. Raises as `start` does."""

        def start() -> None:
            options = RequestOptions.of(keywords)
            preparing = Preparing(request.channel, options.timeout)
            request.inputs = inputs = self.inputs(prompt, preparing)
            request.generation = self.start(inputs, params, options, request.channel, preparing=preparing)

        run_or_cancel(request.channel, start)

    def complete(
        self, request: Request, prompt: Prompt, params: SamplingParams, keywords: RequestKeywords
    ) -> Completion:
        """Start a request, and wait for its answer. Raises as `start` and `Request.result` do."""

        def complete() -> Completion:
            self.hand_in(request, prompt, params, keywords)
            return request.result()

        return run_or_cancel(request.channel, complete)

    def complete_all(
        self, prompt: Prompt | Prompts, params: SamplingParams, count: AnswerCount, keywords: RequestKeywords
    ) -> list[Completion]:
        """Answers to each prompt, as many as `count` says. Raises as `start`, and the error of the first that fails."""
        events: SimpleQueue[Numbered] = SimpleQueue()
        group = RequestGroup(events.put)

        def complete() -> list[Completion]:
            self._start_all(group, prompt, params, count, RequestOptions.of(keywords))
            return count.chosen(group.completions(events.get), params)

        return run_or_cancel(group.call, complete)

    async def acomplete_all(
        self, prompt: Prompt | Prompts, params: SamplingParams, count: AnswerCount, keywords: RequestKeywords
    ) -> list[Completion]:
        """`complete_all` for asyncio; cancelling the awaiting task cancels all of its requests."""
        import asyncio  # noqa: PLC0415 (few programs use it)

        from ollama_engine.runner.request.astream import AsyncMailbox  # noqa: PLC0415

        events: AsyncMailbox[Numbered] = AsyncMailbox()
        group = RequestGroup(events.put)

        async def complete() -> list[Completion]:
            arguments = (group, prompt, params, count, RequestOptions.of(keywords))
            if self.takes_long(arguments[-1], prompt):
                await asyncio.to_thread(self._start_all, *arguments)
            else:
                self._start_all(*arguments)
            return count.chosen(await group.acompletions(events.get), params)

        return await arun_or_cancel(group.call, complete)

    def logits(self, prompt: Prompt) -> FloatArray:
        events: SimpleQueue[Event] = SimpleQueue()
        channel = RequestChannel(events)

        def compute() -> FloatArray:
            inputs = self.inputs(prompt, several="logits takes one prompt at a time")
            self.thread.submit(new_scoring(self.loaded, inputs, channel))
            rows: FloatArray = result_of(events.get())
            return rows

        return run_or_cancel(channel, compute)

    def _start_all(
        self, group: RequestGroup, prompt: Prompt | Prompts, params: SamplingParams, count: AnswerCount,
        options: RequestOptions,
    ) -> None:  # fmt: skip
        """Submit requests for each prompt, which share its cells: all of them, or none where one is refused."""
        check_params(params)
        preparing = Preparing(group.call, options.timeout)
        name = "prompts" if is_many(prompt) else None
        made: list[Generation] = []
        for number, each in enumerate(many(prompt)):
            with about_one(name, number):
                inputs, first = self.inputs(each, preparing), None
                for variant in count.variants(params):
                    made.append(
                        self.make(inputs, variant, options, group.channel(), follows=first, preparing=preparing)
                    )
                    first = first or made[-1]
        self.thread.submit(*made)

    def fork(self, request: Request, params: SamplingParams | None, keywords: RequestKeywords) -> Request:
        source = request.generation
        assert source is not None
        assert request.inputs is not None
        inputs = request.inputs.with_tokens(request.tokens)
        fork = Request(request.engine, inputs)
        options, answered = fork_options(source, request.tokens, keywords)

        def start() -> None:
            # The caller has those of the prompt, which would have to be computed again.
            inherited = source.params
            if inherited.prompt_logprobs is not None:
                inherited = replace(inherited, prompt_logprobs=None)
            fork.generation = self.start(
                inputs, params or inherited, options, fork.channel, follows=source, answered=answered
            )

        run_or_cancel(fork.channel, start)
        return fork


def _takes_long_to_read(prompt: Prompt | Prompts) -> bool:
    return has_media(prompt) or is_long(many(prompt))


def check_forkable(request: Request, engine: object) -> None:
    """Raise ConfigError for anything but a request of this engine."""
    if not isinstance(request, Request) or request.generation is None or request.engine is not engine:
        raise ConfigError("fork takes a Request that submit or fork of this Engine returned")
