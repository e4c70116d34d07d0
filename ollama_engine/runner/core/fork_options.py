"""Options of a fork: those of its source but for what is given, and how much of the answer they find done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ollama_engine.errors import ConfigError, Option
from ollama_engine.runner.request.options import RequestKeywords, RequestOptions
from ollama_engine.runner.request.reasoning import MOST, ReasoningBudget
from ollama_engine.runner.schedule.budgeted_reasoning import BudgetedReasoning
from ollama_engine.runner.schedule.sequence import Generation

__all__ = ["NOTHING_YET", "Answered", "fork_options"]


class Answered(NamedTuple):
    """Tokens at the end of a prompt that the answer begins with."""

    tokens: tuple[int, ...] = ()
    uncounted: int = 0
    """As many of them came before the reasoning budget began to count."""


NOTHING_YET = Answered()


def fork_options(
    source: Generation, taken: Sequence[int], keywords: RequestKeywords
) -> tuple[RequestOptions, Answered]:
    """Options of a fork of `source` when the tokens `taken` have come, and what of its answer they go on with.

    A format goes on where it is the source's; another one begins. A budget that is given counts from here on, for
    reasoning that is under way. `truncate_prompt` is not inherited: this prompt ends with an answer. Raises ConfigError
    as `RequestOptions.replaced` does, and for a budget that would end the reasoning otherwise than the source's, which
    the format waits for.
    """
    options = replace(source.options, truncate_prompt=True).replaced(keywords)
    if "format" in keywords and not _same_format(options.format, source.options.format):
        return options, NOTHING_YET
    constraint = source.constraint
    before = () if constraint is None else constraint.answered
    tokens = (*before, *taken)
    if "reasoning_budget" in keywords:
        if options.format is not None and tokens:
            options = replace(options, reasoning_budget=_next_budget(source.options, options.reasoning_budget))
        return options, Answered(tokens, len(tokens))
    return options, Answered(tokens, constraint.uncounted if isinstance(constraint, BudgetedReasoning) else 0)


def _same_format(given: object, source: object) -> bool:
    from ollama_engine.sample.constraints.source import format_key  # noqa: PLC0415 (few ask for a format)

    return given is source or format_key(given) == format_key(source)


def _next_budget(source: RequestOptions, given: int | ReasoningBudget | None) -> ReasoningBudget | None:
    """The budget of an answer that has begun, and that ends in the source's format."""
    if source.reasoning_budget is None:
        return None  # No reasoning can begin any more.
    before = source.reasoning_budget
    before = before if isinstance(before, ReasoningBudget) else ReasoningBudget(before)
    if not isinstance(given, ReasoningBudget):
        return replace(before, tokens=MOST if given is None else given)
    if (given.opens, given.closes) != (before.opens, before.closes):
        raise ConfigError(
            Option("reasoning_budget"),
            f": this fork's answer goes on in its source's format behind {before.closes!r}, so its reasoning opens "
            f"with {before.opens!r} and closes with {before.closes!r}, as its source's",
            advice=["pass a number of tokens", ("pass another ", Option("format"), ", which begins with the fork")],
        )
    return given
