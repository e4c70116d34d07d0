"""Pictures of any size as squares, in the ways of CLIP's and LLaVA's published processors. Pillow does the resizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ollama_engine.multimodal.resampling import FILTERS

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["FITS", "resized", "square"]

FITS = ("crop", "pad", "stretch")
MOST_PIXELS = 128 << 20
"""Most pixels of a picture between two steps of a published processor. A longer one may be far larger than memory then:
only its square is computed, and pixels at the edges of what is seen differ by a few levels."""


def resized(image: Image, width: int, height: int, filter_: str) -> Image:
    """An RGB picture in another size. FILTERS names what may be chosen."""
    return image.resize((width, height), FILTERS[filter_])


def square(image: Image, side: int, fit: str, filter_: str, ground: Sequence[float]) -> Image:
    """An RGB picture as a square of `side` pixels.

    `fit` is "crop" (the shorter edge becomes `side`, and the middle is taken), "stretch", or "pad" (put in the middle
    of a square of the colour `ground`, red, green and blue from 0 to 1, then resized).
    """
    if fit == "stretch":
        return resized(image, side, side, filter_)
    if fit == "pad":
        if max(image.size) ** 2 > MOST_PIXELS:
            image = _shrunk(image, side, filter_)
        return resized(_padded(image, ground), side, side, filter_)
    short = min(image.size)
    width, height = (int(side * n / short) if n != short else side for n in image.size)
    left, top = (width - side) // 2, (height - side) // 2
    if width * height <= MOST_PIXELS:
        return resized(image, width, height, filter_).crop((left, top, left + side, top + side))
    return _cropped_first(image, (width, height), (left, top), side, filter_)


def _shrunk(image: Image, side: int, filter_: str) -> Image:
    """A picture whose longer edge is `side`."""
    width, height = (max(1, round(side * n / max(image.size))) for n in image.size)
    return resized(image, width, height, filter_)


def _padded(image: Image, ground: Sequence[float]) -> Image:
    import PIL.Image  # noqa: PLC0415 (text models work without Pillow)

    side = max(image.size)
    if image.size == (side, side):
        return image
    made = PIL.Image.new("RGB", (side, side), tuple(int(level * 255) for level in ground))
    made.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return made


def _cropped_first(image: Image, size: tuple[int, int], at: tuple[int, int], side: int, filter_: str) -> Image:
    """The square at `at` of the picture resized to `size`, without the rest."""
    across, down = image.width / size[0], image.height / size[1]
    box = (at[0] * across, at[1] * down, (at[0] + side) * across, (at[1] + side) * down)
    return image.resize((side, side), FILTERS[filter_], box=box)
