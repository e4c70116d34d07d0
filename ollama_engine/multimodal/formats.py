"""Formats of image files, told by their first bytes: PNG, JPEG, WebP, GIF, BMP, TIFF, PPM and AVIF.

Pillow knows others; they are rare, and some of their readers start programs (EPS).
"""

from __future__ import annotations

__all__ = ["FORMATS", "HEAD", "format_of", "is_image", "media_type", "what_else"]

FORMATS = "PNG, JPEG, WebP, GIF, BMP, TIFF, PPM and AVIF"
HEAD = 16
"""Bytes that tell the format."""


def is_image(head: bytes) -> bool:
    """Whether a file that begins so (16 bytes) is of one of the formats."""
    return bool(format_of(head))


def media_type(head: bytes) -> str:
    """The media type of a file that begins so, such as "image/png", as data URLs name it."""
    name = format_of(head).lower()
    return "image/x-portable-anymap" if name == "ppm" else f"image/{name}" if name else "application/octet-stream"


def what_else(head: bytes) -> str:
    """Describes a file that begins so, for an error message."""
    if head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"hevc", b"heim", b"heis"):
        return "a HEIC file, which is not read"
    return f"no image that can be read, but begins with {head[:8]!r}"


def format_of(head: bytes) -> str:
    """The name of Pillow's module for it, such as "Png"; "" for another."""
    beginnings = {
        b"\x89PNG\r\n\x1a\n": "Png",
        b"\xff\xd8\xff": "Jpeg",
        b"GIF87a": "Gif",
        b"GIF89a": "Gif",
        b"BM": "Bmp",
        b"II*\0": "Tiff",
        b"MM\0*": "Tiff",
        b"II+\0": "Tiff",
        b"MM\0+": "Tiff",
        **{b"P%d" % number: "Ppm" for number in range(1, 7)},
    }
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp" and head[8:12] in (b"avif", b"avis", b"mif1", b"msf1"):
        return "Avif"
    # No generator that is left half used: an interrupt as it is closed would be lost.
    found = "".join([name for begin, name in beginnings.items() if head.startswith(begin)])
    return "" if found == "Ppm" and not head[2:3].isspace() else found
