"""Reads image files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ollama_engine.errors import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["read_image"]


def read_image(data: bytes) -> Image:
    """The RGB picture of an image file's bytes. Raises ImageError for anything that is no image."""
    import PIL.Image  # noqa: PLC0415 (only images need it)

    try:
        with PIL.Image.open(io.BytesIO(data)) as file:
            return file.convert("RGB")
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise ImageError(f"the bytes are not an image that can be read: {error}") from error
