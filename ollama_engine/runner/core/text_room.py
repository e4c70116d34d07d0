"""TextRoom: a text that no context holds is refused, or cut, before it is tokenized, which takes seconds a megabyte.

    characters > num_ctx * characters of the longest token   =>   tokens > num_ctx

So the error is the one that counting its tokens would raise. What is cut leaves more tokens than a context holds, and
those that are dropped then are in the middle, where the cut is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ollama_engine.errors import ContextOverflowError, Option, Phrase
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.tokenizer import Tokenizer

__all__ = ["CUT", "LARGER", "LET_CUT", "NUM_CTX", "SHORTEN", "TextRoom"]

NUM_CTX = Option("num_ctx")
SHORTEN = "shorten it"
LARGER = ("choose a larger ", NUM_CTX)
CUT = ("let it be cut with ", Option("on_overflow", "truncate"), " or ", Option("on_overflow", "shift"))
LET_CUT = ("let it be cut: leave ", Option("truncate_prompt"), " out")

Parts = Sequence[tuple[str, bool]]
"""Texts that follow each other, as `Tokenizer.encode_parts` takes them."""


@dataclass(frozen=True, slots=True)
class TextRoom:
    """What of a text that is too long can be among the tokens that a context of `num_ctx` holds.

    Attributes:
        first: tokens at its beginning that are kept.
        last: tokens at its end that are kept. With neither, the text is refused.
        advice: for the error.
    """

    num_ctx: int
    first: int = 0
    last: int = 0
    advice: Sequence[Phrase] = (SHORTEN, LARGER)

    @classmethod
    def of_prompt(cls, num_ctx: int, options: RequestOptions) -> TextRoom:
        """For a prompt, of which a cut keeps `num_keep` tokens and the newest."""
        if options.on_overflow == "error" or not options.truncate_prompt:
            return cls(num_ctx, advice=(SHORTEN, LARGER, CUT if options.on_overflow == "error" else LET_CUT))
        return cls(num_ctx, first=options.num_keep + 1, last=num_ctx)

    def most(self, longest: int) -> int:
        """Characters of the longest text that may fit, where a token has at most `longest`."""
        return self.num_ctx * longest

    def check(self, tokenizer: Tokenizer, n_characters: int, text: str = "the prompt") -> None:
        """Raise ContextOverflowError for so many characters, unless they may be cut."""
        longest = tokenizer.longest_token
        if longest is not None and n_characters > self.most(longest) and not (self.first or self.last):
            raise ContextOverflowError(
                f"{text} has {n_characters} characters, and so more than {(n_characters - 1) // longest} tokens, but ",
                NUM_CTX, f" is {self.num_ctx}", advice=self.advice,
            )  # fmt: skip

    def fitted(self, tokenizer: Tokenizer, parts: Parts, text: str = "the prompt") -> Parts:
        """The texts, without their middle where they are too long and may be cut; else raises as `check` does."""
        n_characters = sum(len(part) for part, _ in parts if isinstance(part, str))
        self.check(tokenizer, n_characters, text)
        longest = tokenizer.longest_token
        if longest is None or n_characters <= (self.num_ctx + self.first + self.last) * longest:
            return parts
        # One token more on each side of the cut: that one may be another than in the whole text.
        head, tail = ((n + 1) * longest if n else 0 for n in (self.first, self.last))
        return [*_beginning(parts, head), *reversed(_beginning(list(reversed(parts)), tail, of_ends=True))]

    def shortened(self, tokenizer: Tokenizer, text: str) -> str:
        """A part of a prompt, without its middle where it is so long that `fitted` would leave that out later.

        What is left is still too long for the context, and has all characters that `fitted` keeps. So a prompt that is
        made with it is cut to the same tokens, as long as it has the part as it is, but for white space around it.
        """
        longest = tokenizer.longest_token
        if longest is None or not (self.first or self.last):
            return text
        head, tail = (self.first + 1) * longest, (self.num_ctx + self.last + 1) * longest
        return text if len(text) <= head + tail else text[:head] + text[-tail:]


def _beginning(parts: Parts, n_characters: int, *, of_ends: bool = False) -> list[tuple[str, bool]]:
    """The first characters of parts; of their last ones, where the parts are in the opposite order (`of_ends`)."""
    taken: list[tuple[str, bool]] = []
    for text, parse_special in parts:
        if n_characters <= 0:
            break
        taken.append((text[-n_characters:] if of_ends else text[:n_characters], parse_special))
        n_characters -= len(text)
    return taken
