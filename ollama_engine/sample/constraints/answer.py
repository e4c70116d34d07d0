"""From an answer's text to its value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ollama_engine.errors import IncompleteError, Option

if TYPE_CHECKING:
    from ollama_engine.sample.constraints.vocabulary import TextTokenizer

__all__ = ["Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads the value of an answer in a format."""

    value: Callable[[str], object]
    answered: tuple[int, ...]
    """Tokens of the answer that came in another request: this one is its fork."""
    decoder: TextTokenizer | None
    """Of these tokens; None without any: answers are copied and pickled with their readings, tokenizers are not."""
    cut: str | None = None
    """Why the answer is not whole."""

    def read(self, text: str, tokens: Sequence[int] | None) -> object:
        """The value. Raises IncompleteError where the answer was cut off, and what the caller's own validators raise.

        `tokens`: of the text; None where the text is not all that they say.
        """
        if self.cut is not None:
            raise IncompleteError(
                f"the answer is not whole, {self.cut}: {_shortened(text)}",
                advice=[
                    ("choose a larger ", Option("max_tokens")),
                    "look at `text`, or `content` of a chat, for what there is of it",
                ],
            )
        if self.decoder is not None and tokens is not None:
            # Not the texts: a character may be split between the two.
            text = self.decoder.decode([*self.answered, *tokens], continues=True)
        return self.value(text)


def _shortened(text: str) -> str:
    return repr(text) if len(text) <= 60 else f"{text[:20]!r} ... {text[-30:]!r}"
