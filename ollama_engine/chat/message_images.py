"""Images in messages, in the forms of three interfaces. Nothing is downloaded.

    {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}     OpenAI's
    {"role": ..., "content": ..., "images": [...]}                               Ollama's: base64 text, bytes, paths
    {"type": "image", "image": ...}, or with "path", "url" or "base64"           transformers'

Wherever an image stands it may also be a PIL.Image, an array, a path object, or `Media`. Only a text in "image", "path"
or "images" may name a file: programs that pass on what others sent them as "image_url" open no file for them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any, TypeGuard

from ollama_engine.errors import ChatError
from ollama_engine.multimodal.formats import is_image
from ollama_engine.multimodal.source import is_picture
from ollama_engine.segments import ImageSource, Media

__all__ = ["from_base64", "is_kept", "is_no_path", "read_image_part", "read_images", "read_sent_image"]

SENT = "expected a data URL, base64 text, the bytes of a file, a PIL.Image or an array"
EXPECTED = SENT.replace("expected", "expected a path,")
KEYS = ("image", "path", "url", "base64", "image_url")


def is_kept(value: object) -> TypeGuard[ImageSource]:
    """Whether it is an image and no plain data."""
    return isinstance(value, Media) or is_picture(value)


def is_no_path(image: object) -> bool:
    """Whether `read_images` takes a text for an image in base64, whatever files there are."""
    if not isinstance(image, str):
        return False
    try:
        return is_image(from_base64(image.partition(",")[2] if image.startswith("data:") else image)[:16])
    except ValueError:
        return False


def read_images(where: str, images: object) -> tuple[Media, ...]:
    """Ollama's list of images beside the content."""
    if not isinstance(images, list):
        raise ChatError(f"{where}: expected a list, got {type(images).__name__}")
    return tuple(_read(f"{where}[{number}]", image, may_be_path=True) for number, image in enumerate(images))


def read_image_part(where: str, part: Mapping[str, Any]) -> Media:
    """A part of type "image", "image_url" or "input_image"."""
    keys = ("image_url",) if part.get("type") != "image" else KEYS
    given = [key for key in keys if part.get(key) is not None]
    if len(given) != 1:
        got = " and ".join([f'"{key}"' for key in given]) or "none"
        raise ChatError(f"{where}: expected an image in {_either(keys)}, got {got}")
    key = given[0]
    value, where = part[key], f"{where}.{key}"
    if key == "path" and isinstance(value, str):
        return Media(value)
    if isinstance(value, dict):  # OpenAI's {"url": ..., "detail": ...}
        value, where = value.get("url"), f"{where}.url"
    return _read(where, value, may_be_path=key == "image")


def read_sent_image(where: str, value: object) -> Media:
    """An image that others sent, whose text names no file of this machine."""
    return _read(where, value, may_be_path=False)


def _read(where: str, value: object, *, may_be_path: bool) -> Media:
    if isinstance(value, Media):
        return value
    if isinstance(value, bytes) or is_kept(value):
        return Media(value)
    if not isinstance(value, str):
        raise ChatError(f"{where}: {EXPECTED if may_be_path else SENT}, got {type(value).__name__}")
    if value.startswith("data:"):
        return Media(_from_data_url(where, value))
    if "://" in value[:16]:
        raise ChatError(
            f"{where}: {EXPECTED if may_be_path else SENT}; addresses such as {value[:40]!r} are not fetched",
            advice=["fetch it, and pass its bytes"],
        )
    return _from_text(where, value, may_be_path=may_be_path)


def _from_data_url(where: str, url: str) -> bytes:
    head, _, text = url.partition(",")
    if not head.endswith(";base64"):
        raise ChatError(f"{where}: expected a data URL in base64, got {head[:40]!r}")
    try:
        return from_base64(text)
    except ValueError as error:
        raise ChatError(f"{where}: expected base64 text after the comma, which this is not: {error}") from None


def _from_text(where: str, text: str, *, may_be_path: bool) -> Media:
    """Base64 text or a path. An image in base64 is never looked for among the files."""
    try:
        data = from_base64(text)
    except ValueError as error:
        if may_be_path and _is_there(text):
            return Media(text)
        what = "is no file, and no base64 text" if may_be_path else "is no base64 text"
        expected = EXPECTED if may_be_path else SENT
        raise ChatError(f"{where}: {expected}; {text[:60]!r} {what}: {error}") from None
    if may_be_path and not is_image(data[:16]) and _is_there(text):
        return Media(text)
    return Media(data)


def from_base64(text: str) -> bytes:
    """The bytes of a text in base64, without its line breaks and spaces. Raises ValueError.

    It is not split at them: a text of letters and spaces has millions of parts.
    """
    return base64.b64decode(text.encode("ascii").translate(None, b" \t\n\r\v\f"), validate=True)


def _is_there(path: str) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a zero byte
        return False


def _either(keys: tuple[str, ...]) -> str:
    quoted = [f'"{key}"' for key in keys[:4]]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
