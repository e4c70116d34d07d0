"""PreparedChat: the prompt of a conversation, and what is known of its answer before it comes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine.chat.dialects import Dialect, ToolDefinition
from ollama_engine.errors import ChatError, ConfigError, Option
from ollama_engine.runner.chat.answer_reader import AnswerReader
from ollama_engine.runner.chat.forced_call import ForcedCall
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.reasoning import ReasoningBudget
from ollama_engine.sample import SamplingParams
from ollama_engine.segments import Segment

__all__ = ["PreparedChat"]

UNBOUNDED = 1 << 24
"""Tokens of reasoning, where nothing bounds them."""


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A conversation's prompt, and what is known of its answer.

    Attributes:
        segments: the prompt.
        params: how to sample, with the texts that end the assistant's turn.
        forced: the grammar of an answer that has to be a call, or a call or a value.
        show_special: whether control tokens of the answer are part of its text, for the dialect to read.
        inputs: those of `segments`, where they had to be counted.
        dropped_messages: how many of the oldest messages were left out.
    """

    segments: list[Segment]
    params: SamplingParams
    show_special: bool
    dialect: Dialect
    tools: tuple[ToolDefinition, ...]
    reasoning_open: bool
    thinking: tuple[str, str] | None
    """Markers at the beginning and end of reasoning; None where the dialect knows none."""
    may_reason: bool
    """Whether the answer may begin with reasoning: the prompt opened it, or a control token does."""
    forced: ForcedCall | None
    inputs: Inputs | None = None
    dropped_messages: int = 0

    def request_options(self, given: RequestOptions) -> RequestOptions:
        """`given`, with what forces a call, and with a reasoning budget in tokens made one of this dialect.

        Raises ConfigError for a budget beside a grammar of calls in a dialect that cannot have both; ChatError where no
        reasoning can be limited.
        """
        if self.forced is None:
            return self.with_budget(given)
        if given.reasoning_budget is None:
            return replace(given, format=self.forced.grammar)
        if self.forced.behind_reasoning is None:
            has_value = self.forced.has_value
            what = (
                (Option("format"), " beside ", Option("tools")) if has_value else (Option("tool_choice"), " of a call")
            )
            raise ConfigError(
                *what, f" in the {self.dialect.name} dialect cannot have a ", Option("reasoning_budget"), " too"
            )
        return self.with_budget(replace(given, format=self.forced.behind_reasoning()))

    def reader(self) -> AnswerReader:
        """A new parser of the answer."""
        parser = self.dialect.parser(tools=self.tools, reasoning_open=self.reasoning_open)
        has_value = self.forced is None or self.forced.has_value
        return AnswerReader(parser, has_value=has_value, dropped_messages=self.dropped_messages)

    def with_budget(self, options: RequestOptions) -> RequestOptions:
        """`options`, with a reasoning budget in tokens made one of this dialect. Raises ChatError where it has none.

        A `format` is that of the answer: where the model may reason first, it may for any number of tokens.
        """
        budget = options.reasoning_budget
        if budget is None and options.format is not None and self.may_reason:
            budget = UNBOUNDED
        if budget is None or isinstance(budget, ReasoningBudget):
            return options
        if self.thinking is None:
            raise ChatError(
                f"the {self.dialect.name} dialect has no reasoning to limit",
                advice=[
                    "pass a ReasoningBudget that names its markers",
                    ("leave ", Option("reasoning_budget"), " out"),
                ],
            )
        opens, closes = self.thinking
        return replace(
            options, reasoning_budget=ReasoningBudget(budget, None if self.reasoning_open else opens, closes)
        )
