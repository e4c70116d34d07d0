"""Images that a user shows to a model: the files of --image and /image, and paths dropped into a conversation.

A terminal writes the path of a file that is dropped into it: quoted, with backslashes before spaces, or as file://.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from ollama_engine import demo
from ollama_engine.cli.errors import UsageError, describe
from ollama_engine.cli.paths import existing
from ollama_engine.errors import ImageError
from ollama_engine.multimodal.formats import HEAD, is_image, media_type
from ollama_engine.store.lookup import DEMO

__all__ = ["NamedImage", "dropped_images", "image_of_flag", "image_part", "named_path", "read_named"]

WORD = re.compile(r"""'([^']+)'(?!\S)|"([^"]+)"(?!\S)|((?:\\.|[^\s\\])+)""")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
PUNCTUATION = ".,;:!?)"


class NamedImage(NamedTuple):
    """An image, and what to call it."""

    name: str
    data: bytes


def read_named(path: str) -> NamedImage:
    """An image file that was decoded once. Raises ImageError, which names the path."""
    from ollama_engine.multimodal import image, source  # noqa: PLC0415 (numpy: a command's help is there before)

    data = source.image_bytes(os.path.expanduser(path))
    try:
        image.read_image(data)
    except ImageError as error:
        raise error.behind(f"{path}: ") from error.__cause__
    return NamedImage(os.path.basename(path), data)


def image_of_flag(path: str) -> NamedImage:
    """An image of --image; `demo` is the packaged one. Raises UsageError, which suggests similar names of files."""
    if path == DEMO:
        path = str(demo.picture_path())
    try:
        return read_named(existing(os.path.expanduser(path)))
    except (ImageError, OSError) as error:
        raise UsageError(f"--image: {describe(error)}") from None


def image_part(image: NamedImage) -> dict[str, Any]:
    """The part of a message, as OpenAI's API writes it: JSON can hold it."""
    text = base64.b64encode(image.data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{media_type(image.data[:HEAD])};base64,{text}"}}


def dropped_images(line: str) -> tuple[list[NamedImage], str]:
    """The images whose paths are in a line, and the text without them.

    A path has a slash or an image's ending, and names an image file that exists; every other word is text. Raises
    ImageError for an image that is damaged.
    """
    if _is_dropped(line.strip()):  # with spaces that the terminal left as they are
        return [read_named(line.strip())], ""
    images, kept, end = [], [], 0
    for begin, after, path in _paths(line):
        images.append(read_named(path))
        kept.append(line[end:begin].strip())
        end = after
    kept.append(line[end:].strip())
    return images, " ".join(filter(None, kept)) if images else line


def named_path(text: str) -> str:
    """The path that a whole text names, with or without quotes and backslashes."""
    match = WORD.fullmatch(text)
    candidates = [text] if match is None else [text, *_spellings(match)]
    return next((path for path in candidates if os.path.exists(os.path.expanduser(path))), text)


def _paths(line: str) -> Iterator[tuple[int, int, str]]:
    """(begin, end, path) of each path of an image file in a line."""
    at = 0
    while (begin := re.compile(r"\S").search(line, at)) is not None:
        word = WORD.match(line, begin.start())
        path = None if word is None else next(filter(_is_dropped, _spellings(word)), None)
        if word is None or path is None:
            # The next word, not what follows a quotation mark that may be an apostrophe.
            following = re.compile(r"\s").search(line, begin.start())
            at = len(line) if following is None else following.start()
            continue
        yield word.start(), word.end(), path
        at = word.end()


def _spellings(match: re.Match[str]) -> Iterator[str]:
    """The paths that a word of a line may mean: as it is, without punctuation at its end, without backslashes."""
    quoted = match[1] or match[2]
    word = quoted or match[3]
    if word.startswith("file://"):
        with suppress(ValueError):
            yield unquote(urlsplit(word).path)
        return
    for spelled in (word, word.rstrip(PUNCTUATION)):
        yield spelled
        if quoted is None:
            yield re.sub(r"\\(.)", r"\1", spelled)


def _is_dropped(path: str) -> bool:
    """Whether a word looks like a path, and is that of an image file."""
    if "/" not in path and os.sep not in path and not path.lower().endswith(SUFFIXES):
        return False
    path = os.path.expanduser(path)
    try:
        if not os.path.isfile(path):
            return False
        with open(path, "rb") as file:
            return is_image(file.read(HEAD))
    except (OSError, ValueError):
        return False
