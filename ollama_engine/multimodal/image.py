"""Reads image files: bytes to a picture in RGB, or in RGBA where some of it is transparent."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, cast

import numpy as np

from ollama_engine.errors import ImageError
from ollama_engine.multimodal.formats import FORMATS, HEAD, format_of, what_else
from ollama_engine.multimodal.orientation import upright

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["MAX_DECODED", "MAX_PIXELS", "check_size", "on_white", "picture_from", "picture_of", "read_image"]

MAX_PIXELS = 1024 * 1024 * 1024 // 4 // 3
"""Most pixels of a picture: 89 million, where Pillow begins to warn. A small file may describe far larger ones."""
MAX_DECODED = 1 << 25
"""Most pixels that are decoded, which take 134 MB in Pillow. Qwen2.5-VL can use more than others: 12.8 million."""
MAX_RATIO = 200
"""Most times that one side may be as long as the other, as for Qwen's models. CLIP's processors scale the short side to
336 pixels before they cut: at this ratio they make 23 million of any picture, and without a bound any number."""


def read_image(data: bytes) -> Image:
    """The picture of an image file's bytes, upright, in mode RGB; in RGBA where some pixel is not opaque.

    The first frame of an animation. Colours are those of Pillow's `convert("RGB")`, as in transformers' `load_image`,
    but that 16-bit grey keeps its upper 8 bits, where Pillow cuts it off at 255. What becomes of transparency is for
    the model's preprocessing: `load_image` drops it, the published processors put such a picture on white (`on_white`).

    Any number of threads may call it; no setting of Pillow is changed. Raises ImageError for anything that is no image,
    is cut off, or has too many pixels, which is known before they are decoded: MAX_DECODED, but of a JPEG MAX_PIXELS,
    since its reader can leave pixels out: it then decodes half of each side.
    """
    if not data:
        raise ImageError("the image is empty: it has no bytes")
    make = _reader_of(data[:HEAD])
    if make is None:
        raise ImageError(f"it is {what_else(data[:HEAD])}; images are {FORMATS} files")
    try:
        with make(io.BytesIO(data)) as file:
            check_size(*file.size)
            _halve(file, data)
            check_size(*file.size, most=MAX_DECODED)
            return picture_of(file)
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # damaged data raises whatever Pillow's readers do not foresee
        raise ImageError(f"the image is damaged or cut off: {_text_of(error)}") from error


def picture_of(image: Image) -> Image:
    """A picture of any mode, upright, in RGB; in RGBA where some pixel is not opaque. Raises ImageError for its size.

    Whatever else Pillow raises as it decodes goes on to the caller.
    """
    check_size(*image.size)
    image.load()
    check_size(*image.size)  # frames of a GIF may be larger than it says
    image = upright(image)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        image = _upper_byte(image)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    opaque = image.getchannel("A").getextrema() == (255, 255)
    return image.convert("RGB") if opaque else image


def _halve(file: Image, data: bytes) -> None:
    """Have a JPEG of more than MAX_DECODED pixels decoded at half of its size.

    Not one of several scans, whose coefficients stay in memory until all of them have come, two bytes each.
    """
    width, height = file.size
    if file.format == "JPEG" and width * height > MAX_DECODED and _is_one_scan(data):
        file.draft(None, (width // 2, height // 2))


def _is_one_scan(data: bytes) -> bool:
    """Whether libjpeg keeps no coefficients of a JPEG: it is not progressive, and its first scan has all components.

    jdinput.c, initial_setup: `has_multiple_scans`. A file whose segments do not follow each other is none.
    """
    at, components = 2, 0
    while data[at : at + 1] == b"\xff" and at + 10 <= len(data):
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker in (0xC0, 0xC1):  # SOF0, SOF1: sequential
            components = data[at + 9]
        elif marker == 0xDA:  # SOS
            return 0 < components == data[at + 4]
        at += 2 + length
    return False


def on_white(image: Image) -> Image:
    """An RGB or RGBA picture on a white ground, in RGB."""
    if image.mode != "RGBA":
        return image
    white = image.copy()
    white.paste((255, 255, 255, 255), (0, 0, *image.size))
    white.alpha_composite(image)
    return white.convert("RGB")


def picture_from(levels: np.ndarray) -> Image:
    """A picture from uint8 [height, width] (grey), [height, width, 3] (RGB) or [height, width, 4] (RGBA)."""
    import PIL.Image  # noqa: PLC0415 (only images need it)

    return PIL.Image.fromarray(levels)


def check_size(width: int, height: int, *, most: int = MAX_PIXELS) -> None:
    """Raise ImageError for a picture without pixels, with more than `most`, or one that is far too narrow."""
    if width <= 0 or height <= 0:
        raise ImageError(f"the image has no pixels: it is {width} x {height}")
    if width * height > most:
        hint = "" if most == MAX_PIXELS else f", of a JPEG in one scan {MAX_PIXELS / 1e6:.0f} million"
        raise ImageError(
            f"the image is {width} x {height} pixels, {width * height / 1e6:.0f} million, and {most / 1e6:.0f} "
            f"million are read at most{hint}; make it smaller"
        )
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ImageError(
            f"the image is {width} x {height} pixels, and one side is at most {MAX_RATIO} times as long as the other; "
            "cut it"
        )


def _reader_of(head: bytes) -> Callable[[io.BytesIO], Image] | None:
    """Pillow's class for a file that begins so.

    `PIL.Image.open` would warn of many pixels before anybody can look, and a warning cannot be kept back in one thread
    without touching the others.
    """
    name = format_of(head)
    module = _plugin(name) if name else None
    if module is None:
        return None
    reader: type[Image] = getattr(module, f"{name}ImageFile")
    if name == "Jpeg":
        # It looks for a resolution in EXIF data, and warns where these are damaged, as cameras and editors leave them.
        reader = type(reader.__name__, (reader,), {"_read_dpi_from_exif": lambda self: None})
    return cast("Callable[[io.BytesIO], Image]", reader)


@cache  # Python 3.10 locks imports for each look, and an interrupt there would leave them locked
def _plugin(name: str) -> ModuleType | None:
    try:
        return import_module(f"PIL.{name}ImagePlugin")
    except ImportError:  # older versions of Pillow know no AVIF
        return None


def _upper_byte(image: Image) -> Image:
    """16-bit grey as 8-bit grey. Of 16-bit colour, Pillow itself gives the upper byte."""
    return picture_from((np.clip(np.asarray(image), 0, 65535).astype(np.uint16) >> 8).astype(np.uint8))


def _text_of(error: Exception) -> str:
    text = str(error).strip()
    return text or type(error).__name__
