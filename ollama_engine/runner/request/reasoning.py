"""ReasoningBudget: how long a model may reason before it is made to answer, as a caller says it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import cast

from ollama_engine.errors import ConfigError, Option

__all__ = ["MOST", "ReasoningBudget"]

MOST = 1 << 24
"""Tokens that a budget may have: more than any answer."""


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """At most `tokens` tokens of reasoning; then `message` and `closes` are put into the answer, which goes on.

    Attributes:
        tokens: most tokens of reasoning; 0 ends the reasoning as soon as it begins.
        opens: text that begins an answer with reasoning; another answer is left alone. None: the prompt has opened it.
        closes: text that ends the reasoning, from the model or forced.
        message: text that is put in before `closes` when the budget ends.

    Raises ConfigError for values of another type or out of range.
    """

    tokens: int
    opens: str | None = "<think>"
    closes: str = "</think>"
    message: str = ""

    def __post_init__(self) -> None:
        try:
            number = operator.index(self.tokens)
        except TypeError:
            number = -1
        if isinstance(cast(object, self.tokens), bool) or not 0 <= number <= MOST:
            raise ConfigError(
                Option("reasoning_budget"), f" is a number of tokens from 0 to {MOST}, got {self.tokens!r}"
            )
        object.__setattr__(self, "tokens", number)
        texts = {"opens": "" if self.opens is None else self.opens, "closes": self.closes, "message": self.message}
        for name, text in texts.items():
            if not isinstance(cast(object, text), str):
                raise ConfigError(f"{name} of a reasoning budget is a text, got {text!r}")
        if not self.closes or self.opens == "":
            raise ConfigError("a reasoning budget needs the text that closes the reasoning, and the one that opens it")
