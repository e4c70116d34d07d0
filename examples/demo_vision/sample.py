"""Draws the packaged picture: `python -m demo_vision.sample ../ollama_engine/demo/shapes.png`, from `examples/`."""

from __future__ import annotations

import sys
from random import Random

from PIL import Image

from .draw import Pixels, draw
from .scene import Scene, Thing

__all__ = ["SCENE", "sample"]

SCENE = Scene((Thing("circle", "red", 0), Thing("square", "yellow", 4)))


def sample() -> Pixels:
    """A red circle at the top left and a yellow square in the middle."""
    return draw(SCENE, Random(0), 0)


if __name__ == "__main__":
    Image.fromarray(sample()).save(sys.argv[1], optimize=True)
