"""Pictures for Llama 4: canvases and sizes are those of transformers' processor, pixels at most one level beside."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ollama_engine.models.llama4.preprocess import best_canvas, canvases, fitted_size, normalized_levels
from tests.models.llama4.make_canvases import PATH, SIDE
from tests.models.llama4.small import preprocessor
from tests.models.reference import import_reference
from tests.models.vision.pictures import Picture
from tests.models.vision.published_processor import LLAMA4, image_processor

pytest.importorskip("PIL", reason="Pillow is not installed")


def test_canvases_and_sizes_are_those_of_transformers() -> None:
    for height, width, rows, columns, *expected in json.loads(PATH.read_text(encoding="utf-8")):
        canvas = best_canvas(height, width, SIDE)
        assert canvas == (rows, columns), (height, width)
        pixels = (rows * SIDE, columns * SIDE)
        assert list(fitted_size(height, width, pixels, SIDE)) == expected, (height, width)


def test_canvases_have_all_shapes_of_1_to_16_tiles() -> None:
    """Trap: Ollama's engine passed the side of a patch, 14, as the most tiles, and had no 4 x 4."""
    assert set(canvases()) == {(r, c) for r in range(1, 17) for c in range(1, 17) if r * c <= 16}
    assert len(set(canvases())) == len(canvases())
    assert best_canvas(5000, 5000, SIDE) == (4, 4)
    assert best_canvas(15 * SIDE, SIDE, SIDE) == (15, 1)


def test_a_picture_grows_to_the_side_of_a_tile_at_most() -> None:
    """Trap: Ollama's engine let it grow to 448 pixels (`max_upscaling_size`), whatever the side of a tile."""
    assert best_canvas(350, 500, SIDE) == (2, 2)
    assert fitted_size(350, 500, (2 * SIDE, 2 * SIDE), SIDE) == (350, 500)
    assert fitted_size(100, 60, (SIDE, SIDE), SIDE) == (336, 201)


def test_levels_are_rounded_as_bfloat16_rounds() -> None:
    """Each step: the quotient, the difference, the second quotient."""
    levels = normalized_levels([0.5, 0.25, 0.5], [0.5, 0.5, 0.3])
    assert levels.shape == (3, 256)
    assert not (levels.view(np.uint32) & 0xFFFF).any(), "all are numbers of bfloat16"
    third = 0.333984375  # 85 / 255 in 8 bits
    assert levels[:2, 85].tolist() == [(third - 0.5) / 0.5, (third - 0.25) / 0.5]
    assert levels[0, [0, 255]].tolist() == [-1.0, 1.0]


def test_the_rest_of_a_canvas_is_black_before_pixels_are_normalized() -> None:
    """Trap: black is -1 then, and not 0. The whole picture comes last, and has no rest."""
    made = preprocessor().prepare(Picture(300, 200, 7).draw())
    rows, columns = made.grid
    tiles = made.arrays["tiles"]
    assert tiles.shape == (rows * columns + 1, 16, 588)
    assert made.n_inputs == 4 * len(tiles)
    assert (tiles[rows * columns - 1, -1, -14:] == -1).all()
    assert (tiles[-1] > -1).mean() > 0.9


def test_one_tile_needs_no_whole_picture_beside_it() -> None:
    made = preprocessor().prepare(Picture(40, 50).draw())
    assert (made.grid, len(made.arrays["tiles"])) == ((1, 1), 1)


def test_the_largest_image_has_as_many_tiles_as_any() -> None:
    largest = preprocessor().largest()
    most = max(preprocessor().prepare(Picture(w, h).draw()).n_inputs for w, h in ((300, 300), (900, 56), (60, 900)))
    assert largest.n_inputs == most == 17 * 4


@pytest.mark.reference
def test_pixels_differ_from_torchvision_by_one_level_at_most() -> None:
    """It resizes with torchvision, whose weights have 15 bits where Pillow's have 22, or floats on old CPUs."""
    import_reference()
    processor: Any = image_processor(LLAMA4, pillow=False, size={"height": 56, "width": 56})
    for picture in (Picture(333, 97), Picture(1000, 700), Picture(20, 31), Picture(5, 900)):
        pixels = processor(picture.draw(), return_tensors="pt")["pixel_values"].float().numpy()
        squares = pixels.reshape(len(pixels), 3, 4, 14, 4, 14).transpose(0, 2, 4, 1, 3, 5).reshape(len(pixels), 16, 588)
        levels = (squares - preprocessor().prepare(picture.draw()).arrays["tiles"]) * 127.5
        assert np.abs(levels).max() <= 1.5  # a level, and the rounding of both sides
        assert (levels != 0).mean() < 0.2
