"""Segments: what a prompt may be put together from, when it is more than one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Media", "Segment", "Text", "Tokens", "is_segment"]


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text. Texts that follow each other are tokenized as one: it does not matter where they are cut.

    Attributes:
        text: what it says.
        parse_special: whether control tokens are recognized in it, such as those of a chat template. Leave it off for
            what a user typed: "<|im_end|>" is then ten characters that end nothing.
    """

    text: str
    parse_special: bool = False


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids that are taken as they are."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Media:
    """An image, or another medium that the model reads: the bytes of a file."""

    data: bytes

    def __repr__(self) -> str:
        return f"Media({len(self.data)} bytes)"


Segment = Text | Tokens | Media


def is_segment(value: object) -> bool:
    """Whether it is one of these."""
    return isinstance(value, (Text, Tokens, Media))
