"""Write canvases.json: `python -m tests.models.llama4.make_canvases`, with torch and transformers.

For pictures of many sizes, the canvas that transformers' processor chooses, and the size to which it resizes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.models.vision.published_processor import LLAMA4, processor_class

PATH = Path(__file__).with_name("canvases.json")
SIDE = 336
LIMITS = (1, 2, 335, 336, 337, 448, 671, 672, 673, 1008, 1344, 1345, 5376, 10000)
"""Sides where something changes, or begins to."""


def sizes() -> list[tuple[int, int]]:
    """(height, width): some that nearly fit, squares, and random ones from 1 to 8000 pixels."""
    rng = np.random.default_rng(4)
    random = np.exp(rng.uniform(0, np.log(8000), (200, 2))).astype(int).tolist()
    squares = [(n, n) for n in rng.integers(1, 4000, 40).tolist()]
    return [*((h, w) for h in LIMITS for w in LIMITS), *squares, *(tuple(size) for size in random)]


class Recorder:
    """transformers' processor, which says to what size it resizes, and computes no pixels."""

    def __init__(self) -> None:
        outer = self
        self.first: tuple[int, int] | None = None

        class Recording(processor_class(LLAMA4)):  # type: ignore[misc]
            def resize(self, image: Any, size: Any, *args: Any, **kwargs: Any) -> Any:
                outer.first = outer.first or (int(size.height), int(size.width))
                return image.new_zeros((*image.shape[:2], size.height, size.width))

            def rescale_and_normalize(self, images: Any, *args: Any, **kwargs: Any) -> Any:
                return images

        self._processor = Recording()

    def row(self, height: int, width: int) -> list[int]:
        """[height, width, rows, columns, resized height, resized width]."""
        self.first = None
        found = self._processor(Image.new("RGB", (width, height)), return_tensors="pt")
        assert self.first is not None
        return [height, width, *found["aspect_ratios"][0].tolist(), *self.first]


def main() -> None:
    recorder = Recorder()
    rows = [recorder.row(*size) for size in sizes()]
    PATH.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
    print(PATH)


if __name__ == "__main__":
    main()
