"""Callers' images, as the bytes of image files.

Paths are read, pictures and arrays written as files without loss. So an image is one thing from here on, which is known
by its bytes and no caller can change any more.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import sys
import zlib
from threading import Lock
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from ollama_engine.errors import ImageError
from ollama_engine.multimodal.formats import FORMATS, HEAD, is_image, what_else
from ollama_engine.multimodal.image import MAX_DECODED, MAX_PIXELS, check_size, picture_from, picture_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from ollama_engine.segments import ImageSource

__all__ = ["before_message", "image_bytes", "is_picture"]

MAX_BYTES = 8 * MAX_PIXELS
"""Most bytes of a file: those of the largest picture with four channels of 16 bits, not compressed."""
EXPECTED = "an image is a path, the bytes of a file, a PIL.Image, or an array [height, width, 3]"
LOADING = Lock()
"""Held while a caller's picture is decoded: Pillow decodes a file when its pixels are first asked for, and two threads
that ask at once decode into each other's buffers."""


def image_bytes(source: ImageSource) -> bytes:
    """The bytes of an image file. They are not decoded, except those of a PIL.Image.

    A path is read. A picture becomes a PPM file, or a PNG file where some of it is transparent. So does an array: uint8
    or floats from 0 to 1, [height, width] (grey), [height, width, 3] (RGB) or [height, width, 4] (RGBA).

    Raises ImageError for a path that cannot be read, a file that is no image, and whatever else is passed.
    """
    if isinstance(source, (str, os.PathLike)):
        return _file(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, io.BytesIO):
        return source.getvalue()
    if isinstance(source, np.ndarray):
        return _written(picture_of(_from_array(source)))
    if is_pil(source):
        return _written(_loaded(source))
    hint = "; give one image after the other" if isinstance(source, (list, tuple)) else ""
    raise ImageError(f"{EXPECTED}; got {type(source).__name__}{hint}")


def before_message(source: ImageSource) -> str:
    """The path of an image that is one, to stand before an error's message; "" of any other image."""
    return f"{_shown(source)}: " if isinstance(source, (str, os.PathLike)) else ""


def is_picture(value: object) -> bool:
    """Whether it is an image and nothing that JSON could hold: a text may be a path, and bytes a file."""
    return isinstance(value, (os.PathLike, bytearray, memoryview, io.BytesIO, np.ndarray)) or is_pil(value)


def is_pil(value: object) -> TypeGuard[Image]:
    """Whether it is a PIL.Image. Imports nothing: without Pillow imported, no caller can have one."""
    cls = getattr(sys.modules.get("PIL.Image"), "Image", None)  # another thread may be importing it
    return cls is not None and isinstance(value, cls)


def _file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file, of which the first are looked at before the others are read."""
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ImageError(f"{_shown(path)} is no file; {EXPECTED}")
            head = file.read(HEAD)
            if head and not is_image(head):
                raise ImageError(f"{_shown(path)} is {what_else(head)}; images are {FORMATS} files")
            if status.st_size > MAX_BYTES:
                raise ImageError(
                    f"{_shown(path)} has {status.st_size} bytes, more than any image of a size that is read"
                )
            return head + file.read()
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        if isinstance(error, ImageError):
            raise
        raise ImageError(
            f"{_shown(path)} cannot be read: {getattr(error, 'strerror', None) or error}{_hint(path)}"
        ) from None


def _open_at_once(path: str, flags: int) -> int:
    """Open a file. Opening a pipe without a writer would block; this returns at once."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _shown(path: str | os.PathLike[str]) -> str:
    name = os.fsdecode(path)
    return name if 0 < len(name) <= 200 else repr(name[:60] + "..." if name else "")


def _hint(path: str | os.PathLike[str]) -> str:
    begin = os.fsdecode(path)[:16].lower()
    if begin.startswith("data:"):
        return "; give the bytes of a data URL, decoded"
    return "; nothing is downloaded" if begin.startswith(("http://", "https://")) else ""


def _from_array(array: np.ndarray) -> Image:
    n_channels = array.shape[2] if array.ndim == 3 else 0
    if array.ndim not in (2, 3) or (array.ndim == 3 and n_channels not in (1, 3, 4)):
        last = "; channels come last" if array.ndim == 3 and array.shape[0] in (1, 3, 4) else ""
        raise ImageError(
            f"an array is an image as [height, width], [height, width, 3] or [height, width, 4], got shape "
            f"{list(array.shape)}{last}"
        )
    check_size(array.shape[1], array.shape[0])
    levels = _levels(array)
    return picture_from(np.ascontiguousarray(levels[:, :, 0] if n_channels == 1 else levels))


def _levels(array: np.ndarray) -> np.ndarray:
    """uint8 from uint8, bool, or floats from 0 to 1."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind != "f":
        raise ImageError(f"an array is an image where it holds uint8, or floats from 0 to 1, got {array.dtype}")
    low, high = float(array.min()), float(array.max())
    if not (low >= 0 and high <= 1):  # NaN, too
        raise ImageError(f"an array of floats is an image where they are from 0 to 1, got {low:g} to {high:g}")
    levels: np.ndarray = np.rint(array * np.asarray(255, array.dtype)).astype(np.uint8)
    return levels


def _loaded(image: Image) -> Image:
    """A caller's picture in RGB or RGBA; what its file is lacking is found out here."""
    try:
        with LOADING:
            return picture_of(image)
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # damaged data raises whatever Pillow's readers do not foresee; a closed file ValueError
        raise ImageError(f"the picture cannot be read: {error or type(error).__name__}") from error


def _written(image: Image) -> bytes:
    """An RGB or RGBA picture as a file, without loss and nearly as fast as it can be copied.

    Pillow's `save` tries filters even where it does not compress; and it writes into the picture, which may be the
    caller's own: two threads at once would fail. A picture of more than MAX_DECODED pixels is halved.
    """
    if image.width * image.height > MAX_DECODED:
        image = image.reduce(2)
    if image.mode == "RGB":
        return b"P6\n%d %d\n255\n" % image.size + image.tobytes()
    width, height = image.size
    rows = np.zeros((height, 1 + 4 * width), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = np.asarray(image).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits, RGBA
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.data, 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(part for kind, data in chunks for part in _chunk(kind, data))


def _chunk(kind: bytes, data: bytes) -> tuple[bytes, ...]:
    """PNG specification, 5.3."""
    return struct.pack(">I", len(data)), kind, data, struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
