"""Pillow's filters for resizing, by the numbers that `Image.resize` takes, so that naming one imports no Pillow.

Source: `PIL.Image.Resampling`, whose values tests compare with these.
"""

from __future__ import annotations

__all__ = ["BICUBIC", "BILINEAR", "FILTERS", "LANCZOS"]

LANCZOS = 1
BILINEAR = 2
BICUBIC = 3
FILTERS = {"nearest": 0, "bilinear": BILINEAR, "bicubic": BICUBIC, "lanczos": LANCZOS}
"""By the names that files and transformers use."""
