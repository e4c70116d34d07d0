"""Images beside a prompt: where they stand in it.

A text may have markers, as the runner of Ollama reads them: `[img]` is the next image, `[img-0]` the first, `[img-1]`
the second. Without any marker the images stand before the text. A text that comes without images has no markers: what
looks like one is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast, overload

from ollama_engine.errors import ConfigError, Option
from ollama_engine.runner.request.prompts import Images, Prompt, Prompts, about_one, is_many, is_segments
from ollama_engine.segments import ImageSource, Media, Segment, Text

__all__ = ["with_images", "with_images_each"]

MOST = 1 << 30
"""Stands for every greater number in a marker: Python reads no number of more than 4300 digits."""
MARKER = re.compile(r"\[img(?:-([0-9]+))?\]")
IMAGES = Option("images")


def with_images(prompt: Prompt, images: Images) -> Prompt:
    """A prompt in segments: the text, and the images where its markers are; without images the prompt itself.

    Raises ConfigError where markers and images do not match, and for images beside a prompt that is no text.
    """
    if images is None or not len(_checked(images)):
        return prompt
    if not isinstance(prompt, str):
        where = "its segments, as Media" if is_segments(prompt) else "a prompt in segments: [Media(...), Tokens(...)]"
        raise ConfigError(IMAGES, f" are for a prompt that is one text; put the images of this one into {where}")
    pieces = MARKER.split(prompt)  # text, number or None, text, ...
    texts, numbers = pieces[::2], pieces[1::2]
    media = [Media(image) for image in images]
    if not numbers:
        return [*media, *_text(prompt)]
    found = _text(texts[0])
    for number, text in zip(_numbered(numbers, len(media)), texts[1:], strict=True):
        found += [media[number], *_text(text)]
    return found


@overload
def with_images_each(prompts: Prompt, images: Images) -> Prompt: ...
@overload
def with_images_each(prompts: Prompts, images: Sequence[Images] | None) -> Prompts: ...
@overload
def with_images_each(prompts: Prompt | Prompts, images: Images | Sequence[Images]) -> Prompt | Prompts: ...
def with_images_each(prompts: Prompt | Prompts, images: Images | Sequence[Images]) -> Prompt | Prompts:
    """`with_images` for a prompt, or for each of several, which have a list of images each."""
    if not is_many(prompts):
        return with_images(cast(Prompt, prompts), cast(Images, images))
    if images is None:
        return cast(Prompts, prompts)
    lists = _checked(images)
    if len(lists) != len(prompts) or not all(each is None or isinstance(each, (list, tuple)) for each in lists):
        raise ConfigError(
            IMAGES, f" of {len(prompts)} prompts are as many lists, one for each prompt ([] for none)",
        )  # fmt: skip
    joined = []
    for number, (prompt, each) in enumerate(zip(prompts, lists, strict=True)):
        with about_one("prompts", number):
            joined.append(with_images(prompt, cast(Images, each)))
    return cast(Prompts, joined)


def _checked(images: object) -> Sequence[ImageSource]:
    if not isinstance(images, (list, tuple)):
        raise ConfigError(IMAGES, f" is a list of images, got {type(images).__name__}", advice=["wrap it in [...]"])
    return images


def _text(text: str) -> list[Segment]:
    """As the text of a prompt is: control tokens are parsed."""
    return [Text(text, parse_special=True)] if text else []


def _numbered(markers: Sequence[str | None], n: int) -> list[int]:
    """The image of each marker. Markers without a number get the images that no other one names, in order."""
    numbers = [None if number is None else _number(number) for number in markers]
    named = {number for number in numbers if number is not None}
    beyond = next((number for number in sorted(named) if number >= n), None)
    if beyond is not None:
        raise ConfigError(
            f"the prompt has a marker [img-{beyond}], but ", IMAGES, f" has {_counted(n)}: [img-0] is the first"
        )
    unnamed = [number for number in range(n) if number not in named]
    n_plain = numbers.count(None)
    if n_plain != len(unnamed):
        raise ConfigError(
            f"the prompt has {len(markers)} marker{'s' * (len(markers) != 1)} for {_counted(n)}",
            advice=["write [img] for each image", "write [img-0], [img-1] by their numbers", "write no marker at all"],
        )
    left = iter(unnamed)
    return [next(left) if number is None else number for number in numbers]


def _number(digits: str) -> int:
    digits = digits.lstrip("0")
    return MOST if len(digits) > 9 else int(digits or "0")


def _counted(n: int) -> str:
    return f"{n} image{'s' * (n != 1)}"
