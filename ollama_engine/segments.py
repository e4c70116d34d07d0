"""Segments: what a prompt may be put together from, when it is more than one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import io
    import os

    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    ImageSource: TypeAlias = (
        str | os.PathLike[str] | bytes | bytearray | memoryview | io.BytesIO | Image | npt.NDArray[np.generic]
    )
    """An image as callers pass it: a path; the bytes of a file; a PIL.Image; or an array, uint8 or floats from 0 to 1,
    [height, width] (grey), [height, width, 3] (RGB) or [height, width, 4] (RGBA)."""
else:
    ImageSource = object  # Pillow takes as long to import as an engine

__all__ = ["ImageSource", "Media", "Segment", "Text", "Tokens", "is_segment"]


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


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """An image: a path, the bytes of a file, a PIL.Image, or an array (see `ImageSource`).

    It is read when the prompt is handed in. Two are equal where they have equal paths or bytes, or the same object.
    """

    data: ImageSource

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Media):
            return NotImplemented
        return self.data is other.data or (isinstance(self.data, (str, bytes)) and self.data == other.data)

    def __hash__(self) -> int:
        return hash(self.data) if isinstance(self.data, (str, bytes)) else id(self.data)

    def __repr__(self) -> str:
        if isinstance(self.data, (bytes, bytearray, memoryview)):
            return f"Media({len(self.data)} bytes)"
        return f"Media({self.data!r:.200})" if isinstance(self.data, str) else f"Media({type(self.data).__name__})"


Segment = Text | Tokens | Media


def is_segment(value: object) -> bool:
    """Whether it is one of these."""
    return isinstance(value, (Text, Tokens, Media))
