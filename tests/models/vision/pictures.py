"""Pictures for tests, drawn from a seed, so that no files are committed. Needs Pillow."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import pytest

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Picture", "skip_with_another_pillow"]

RESIZED = 1_464_932_908
"""A checksum of a small picture that Pillow 13 made, as it made the goldens; Pillow 12 rounds otherwise."""


@dataclass(frozen=True)
class Picture:
    """A picture of `width` times `height` pixels: waves of colour, and some noise, by a seed.

    `mode` is Pillow's: "RGB", or another one into which it is converted. Transparent ones have a random alpha channel.
    """

    width: int
    height: int
    seed: int = 0
    mode: str = "RGB"

    def draw(self) -> Image:
        from PIL import Image  # noqa: PLC0415 (modules with cases are read without Pillow)

        rng = np.random.default_rng([self.seed, self.width, self.height])
        y, x = np.mgrid[0 : self.height, 0 : self.width]
        slopes, phases = rng.integers(-9, 10, (3, 2)), rng.integers(0, 256, 3)
        # Integers only: the same pixels on every machine.
        waves = [np.abs((a * x + b * y + phase) % 512 - 256) for (a, b), phase in zip(slopes, phases, strict=True)]
        noise = rng.integers(0, 32, (self.height, self.width, 3))
        pixels = np.clip(np.stack(waves, axis=-1) + noise, 0, 255)
        picture = Image.fromarray(pixels.astype(np.uint8))
        if self.mode.endswith("A"):
            picture.putalpha(Image.fromarray(rng.integers(0, 256, (self.height, self.width), np.uint8)))
        return picture if picture.mode == self.mode else picture.convert(self.mode)

    @property
    def file(self) -> bytes:
        """The bytes of its file: PNG, or TIFF for modes that PNG does not have."""
        out = io.BytesIO()
        self.draw().save(out, "TIFF" if self.mode == "CMYK" else "PNG")
        return out.getvalue()


def skip_with_another_pillow() -> None:
    """Skip a test whose goldens have pixels that this Pillow does not make: the engine has those of its Pillow."""
    if not _resizes_as_goldens():
        from PIL import __version__  # noqa: PLC0415 (as above)

        pytest.skip(f"Pillow {__version__} resizes otherwise than the one that made the goldens, 13.0")


@cache
def _resizes_as_goldens() -> bool:
    small = Picture(31, 97).draw().resize((15, 40))
    return crc32(small.tobytes()) == RESIZED
