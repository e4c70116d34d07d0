"""How a picture is to be turned: the orientation that cameras write beside the pixels.

Pillow's `ImageOps.exif_transpose` looks at the same places in the same order. It reads all tags, though, and warns of
those that are damaged; a damaged tag is no reason to refuse a picture, or to tell its reader about it.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["upright"]

TAG = 0x0112
"""Orientation, in EXIF and TIFF: 1 is upright, 2 to 8 are turned or mirrored."""
SHORT = 3
HEADER = b"Exif\0\0"
XMP = re.compile(r'tiff:Orientation(?:="|>)([0-9])')


def upright(image: Image) -> Image:
    """The picture as it is meant to be seen."""
    from PIL.Image import Transpose  # noqa: PLC0415 (only images need it)

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = turns.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def _orientation(image: Image) -> int:
    exif = image.info.get("exif")
    if exif is None:
        exif = _from_text(image.info.get("Raw profile type exif"))
    found = _in_exif(exif) if isinstance(exif, bytes) else _in_tiff(image)
    return found if found is not None else _in_xmp(image)


def _from_text(profile: object) -> bytes | None:
    """EXIF that PNG files of older programs hold as hexadecimal text behind three lines."""
    if not isinstance(profile, str):
        return None
    try:
        return bytes.fromhex("".join(profile.split("\n")[3:]))
    except ValueError:
        return None


def _in_exif(data: bytes) -> int | None:
    """The value of the tag in the first directory of EXIF data, a TIFF file's structure (EXIF 2.3, 4.6.2)."""
    while data.startswith(HEADER):
        data = data[len(HEADER) :]
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        return None
    try:
        (at,) = struct.unpack_from(order + "L", data, 4)
        (n_tags,) = struct.unpack_from(order + "H", data, at)
        for number in range(n_tags):
            tag, kind, count, value = struct.unpack_from(order + "HHLH", data, at + 2 + 12 * number)
            if (tag, kind, count) == (TAG, SHORT, 1):
                return int(value)
    except struct.error:  # it ends too soon
        return None
    return None


def _in_tiff(image: Image) -> int | None:
    """A TIFF file has the tag among its own."""
    value = getattr(image, "tag_v2", {}).get(TAG)
    return value if isinstance(value, int) else None


def _in_xmp(image: Image) -> int:
    text = image.info.get("XML:com.adobe.xmp") or image.info.get("xmp")
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    found = XMP.search(text) if isinstance(text, str) else None
    return 1 if found is None else int(found[1])
