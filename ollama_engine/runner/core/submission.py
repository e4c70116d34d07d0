"""Submission: makes requests from callers' arguments, for the engine's thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING

from ollama_engine.errors import ConfigError, ContextOverflowError, Option
from ollama_engine.models.eagle3 import Eagle3Head
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.core.fork_options import NOTHING_YET, Answered, fork_options
from ollama_engine.runner.core.input_processor import prompt_inputs
from ollama_engine.runner.core.new_requests import new_generation
from ollama_engine.runner.core.reasoning import budgeted_reasoning
from ollama_engine.runner.core.text_room import TextRoom
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.request.answer_options import AnswerKeywords, chosen_params, request_keywords
from ollama_engine.runner.request.channel import RequestChannel, run_or_cancel
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.preparing import Preparing
from ollama_engine.runner.request.prompts import (
    SEVERAL,
    Prompt,
    Prompts,
    has_media,
    is_long,
    many,
)
from ollama_engine.runner.request.reasoning import ReasoningBudget
from ollama_engine.runner.request.request import Request
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix
from ollama_engine.runner.schedule.queued import Kind
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.steering import Constraint, Drafter
from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.assistant import AssistantDrafter, AssistantSource
from ollama_engine.runner.speculative.draft_model import DraftModel, ModelDrafter
from ollama_engine.runner.speculative.eagle3 import Eagle3Drafter, Eagle3Source
from ollama_engine.runner.speculative.lookup import LookupDrafter
from ollama_engine.runner.speculative.next_tokens import HeadDrafter, NextTokenSource
from ollama_engine.runner.speculative.recent_answers import AnswerMemory
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
        self._making = RLock()
        self._answers = AnswerMemory()
        self._acceptance = Acceptance()
        self._drafts_exactly = loaded.drafts_exactly
        draft, head = loaded.draft, loaded.head
        n_drawn = min(loaded.model.n_vocab, loaded.tokenizer.n_vocab)
        sizes = loaded.config.parallel, loaded.num_ctx
        self._draft_model: DraftModel | AssistantSource | Eagle3Source | None = None
        if draft is not None:
            n_guessed = min(draft.model.n_vocab, n_drawn)
            if draft.cache is None:
                self._draft_model = AssistantSource(draft.executor, loaded.cache, loaded.num_ctx, n_guessed)
            elif isinstance(draft.model, Eagle3Head):
                tokens, o = draft.model.tokens, draft.model.options
                self._draft_model = Eagle3Source(
                    draft.executor, draft.cache, *sizes, n_drawn, tokens=tokens, n_aux=o.n_aux, n_own=o.n_embd
                )
            else:
                self._draft_model = DraftModel(draft.executor, draft.cache, *sizes, n_guessed)
        self._head = NextTokenSource(head.executors, head.cache, *sizes, n_drawn, head.n_first) if head else None

    def inputs(
        self, prompt: Prompt, preparing: Preparing | None = None, *, add_special: bool = True, several: str = SEVERAL,
        room: TextRoom | None = None,
    ) -> Inputs:  # fmt: skip
        """The inputs of a prompt. `several`: hint shown when several prompts are passed. `room`: see `prompt_inputs`.

        Raises what `preparing` says, and errors about the prompt; but ClosedError first, because a closed engine has no
        tokenizer.
        """
        self.thread.check_open()
        checkpoint = None if preparing is None else preparing.check
        with self.counting_refusals():
            return prompt_inputs(
                self.loaded, prompt, add_special=add_special, several=several, checkpoint=checkpoint, room=room
            )

    def make(
        self, inputs: Inputs, params: SamplingParams, options: RequestOptions, channel: RequestChannel, *,
        follows: Generation | None = None, pinned: PinnedPrefix | None = None, show_special: bool = False,
        answered: Answered = NOTHING_YET, preparing: Preparing | None = None,
    ) -> Generation:  # fmt: skip
        """Make a request without submitting it. Raises errors about its arguments.

        `answered`: the end of `inputs` that its answer begins with.
        """
        with self.counting_refusals():
            made = new_generation(
                self.loaded, inputs, params, options, channel, follows=follows, pinned=pinned,
                show_special=show_special, constraint=self._constraint(options, answered),
                drafter=self._drafter(options, inputs),
            )  # fmt: skip
        if preparing is not None:
            preparing.mark(made)
        return made

    @contextmanager
    def counting_refusals(self, kind: Kind = "generation") -> Iterator[None]:
        """Prompts that are too long never come to the engine's thread, which counts all others."""
        try:
            yield
        except ContextOverflowError:
            self.thread.monitor.metrics.ended(kind, "rejected")
            raise

    def _constraint(self, options: RequestOptions, answered: Answered) -> Constraint | None:
        """The constraint of an answer, of which `answered` has come."""
        budget, form = options.reasoning_budget, options.format
        if budget is None:
            return None if form is None else self._compiler().constraint(form, answered.tokens)
        of_answer = None if form is None else partial(self._compiler().constraint, form)
        budget = budget if isinstance(budget, ReasoningBudget) else ReasoningBudget(budget)
        return budgeted_reasoning(self.loaded, budget, answered.tokens, of_answer, uncounted=answered.uncounted)

    def _drafter(self, options: RequestOptions, inputs: Inputs) -> Drafter | None:
        drafting, model, head = options.draft or self.loaded.config.draft, self._draft_model, self._head
        if drafting == "model" and model is None:
            raise ConfigError(
                Option("draft"), " is model, and the engine was loaded without a ", Option("draft_model"),
                advice=["load it with one", ("leave ", Option("draft", "auto"))],
            )  # fmt: skip
        if drafting == "mtp" and head is None:
            raise ConfigError(
                Option("draft"), " is mtp, and the engine has no head for that: the model's file has none of a known "
                "kind, or it was loaded for other drafts", advice=[("leave ", Option("draft", "auto"))],
            )  # fmt: skip
        if drafting == "off" or (drafting == "auto" and not self._drafts_exactly):
            return None
        answers = partial(self._answers.of, options.cache_salt or "") if options.cache else None
        lookup = LookupDrafter(Acceptance(self._acceptance), answers)
        if drafting not in ("mtp", "lookup") and isinstance(model, AssistantSource):
            return AssistantDrafter(model, lookup)
        if drafting == "lookup" or inputs.media:  # neither a draft model nor a head sees images
            return lookup
        if isinstance(model, Eagle3Source) and drafting != "mtp":
            return Eagle3Drafter(model, lookup)
        if isinstance(model, DraftModel) and drafting != "mtp":
            return ModelDrafter(model, lookup, options.cache_salt or "")
        return lookup if head is None else HeadDrafter(head, lookup)

    @staticmethod
    def reads_long(prompt: Prompt | Prompts) -> bool:
        """Whether no event loop should wait for `inputs`: long texts, images."""
        return has_media(prompt) or is_long(many(prompt))

    def takes_long(self, options: RequestOptions, prompt: Prompt | Prompts) -> bool:
        """Whether no event loop should wait while a request is made: long texts, images, a new format."""
        form, grammars = options.format, self._grammars
        return self.reads_long(prompt) or (form is not None and (grammars is None or not grammars.knows(form)))

    def _compiler(self) -> GrammarCompiler:
        # One thread imports at a time: one that waited for an import that is interrupted would get half a module.
        with self._making:
            from ollama_engine.sample.constraints.compiler import GrammarCompiler  # noqa: PLC0415 (few ask for a format)

            if self._grammars is None:
                n_vocab = min(self.loaded.model.n_vocab, self.loaded.tokenizer.n_vocab)
                self._grammars = GrammarCompiler(self.loaded.tokenizer, n_vocab)
            return self._grammars

    def fork(self, request: Request, params: SamplingParams | None, keywords: AnswerKeywords) -> Request:
        source = request.generation
        assert source is not None
        assert request.inputs is not None
        inputs = request.inputs.with_tokens(request.tokens)
        fork = Request(request.engine, inputs)
        options, answered = fork_options(source, request.tokens, request_keywords(keywords))

        def start() -> None:
            # The caller has those of the prompt, which would have to be computed again.
            inherited = source.params
            if inherited.prompt_logprobs is not None:
                inherited = replace(inherited, prompt_logprobs=None)
            fork.generation = self.make(
                inputs,
                chosen_params(params, keywords, inherited),
                options,
                fork.channel,
                follows=source,
                answered=answered,
            )
            self.thread.submit(fork.generation)

        run_or_cancel(fork.channel, start)
        return fork


def check_forkable(request: Request, engine: object) -> None:
    """Raise ConfigError for anything but a request of this engine."""
    if not isinstance(request, Request) or request.generation is None or request.engine is not engine:
        raise ConfigError("fork takes a Request that submit or fork of this Engine returned")
