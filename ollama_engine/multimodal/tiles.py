"""Pictures in tiles: squares of one size side by side, each of which a vision tower reads alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["closest_grid", "tiles_of"]


def tiles_of(image: Image, side: int) -> list[Image]:
    """The squares of `side` pixels that a picture consists of, row by row; both its sides are multiples of `side`."""
    return [
        image.crop((left, top, left + side, top + side))
        for top in range(0, image.height, side)
        for left in range(0, image.width, side)
    ]


def closest_grid(width: int, height: int, side: int, fewest: int, most: int) -> tuple[int, int]:
    """(columns, rows) of `fewest` to `most` tiles whose proportions are nearest to the picture's.

    Of grids that are as near, the one with the most tiles that have less than twice the picture's pixels. Source:
    transformers' GotOcr2ImageProcessor and Lfm2VlImageProcessor.
    """
    shape, area = width / height, width * height
    best, nearest = (1, 1), float("inf")
    grids = [(c, r) for c in range(1, most + 1) for r in range(1, most + 1) if fewest <= c * r <= most]
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(shape - columns / rows)
        if distance < nearest or (distance == nearest and area > 0.5 * side**2 * columns * rows):
            best, nearest = (columns, rows), distance
    return best
