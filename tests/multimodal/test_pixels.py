"""Pixels to patches."""

from __future__ import annotations

import numpy as np
import pytest

from ollama_engine.multimodal.pixels import unfold


@pytest.mark.parametrize(("height", "width"), [(4, 6), (5, 7), (4, 7), (5, 6)])
def test_what_patches_do_not_cover_is_ignored(height: int, width: int) -> None:
    """Some models' image_size is no multiple of their patch_size; Gemma 3 and Llama 4 raised ValueError."""
    pixels = np.arange(3 * height * width, dtype=np.float32).reshape(3, height, width)
    found = unfold(pixels, 2)
    expected = [pixels[:, y : y + 2, x : x + 2].reshape(-1) for y in (0, 2) for x in (0, 2, 4)]
    np.testing.assert_array_equal(found, expected)
