"""Images in messages: what stands for them while a template writes texts, and gives way to the images in the prompt.

A template that knows image parts writes the placeholder of its family for each, such as <start_of_image>: its images
stand where it wrote one. Only what the template wrote itself counts (see `provenance`); what a user types stays text.
To other templates an image is a mark in the text, which holds a random number, so a user cannot type it either.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ollama_engine.chat.messages import Message
from ollama_engine.chat.provenance import trusted_spans
from ollama_engine.chat.template import MessageTemplate, text_segments
from ollama_engine.errors import ChatError
from ollama_engine.segments import Media, Segment

__all__ = ["MediaMarks", "writes_images"]

CONTENT = "needlecontent"


class MediaMarks:
    """The images of one conversation. `placeholder`: what the template writes for an image; None: it knows none."""

    def __init__(self, placeholder: str | None = None) -> None:
        self._placeholder = placeholder
        self._secret = secrets.token_hex(8)
        self._pattern = re.compile(f"<image-{self._secret}-([0-9]+)>")
        self._media: list[Media] = []

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with texts only."""
        return [self._marked(message) if message.media else message for message in messages]

    def _marked(self, message: Message) -> Message:
        texts = [part if isinstance(part, str) else self._next(part) for part in message.content or ()]
        return replace(message, content=tuple(texts))

    def _next(self, media: Media) -> str:
        self._media.append(media)
        return f"<image-{self._secret}-{len(self._media) - 1}>"

    def parts(self, texts: Sequence[str]) -> list[dict[str, Any]] | None:
        """A marked content as parts of texts and images, for a template that knows them; None for a content of text."""
        if self._placeholder is None or not any(map(self._pattern.fullmatch, texts)):
            return None
        return [{"type": "image"} if self._pattern.fullmatch(text) else _text_part(text) for text in texts]

    def segments(self, text: str, *, trust_contents: bool = False) -> list[Segment]:
        """A rendered text in segments, with the images in their places.

        Raises ChatError for an image that the template does not write, or writes twice.
        """
        places = sorted([*self._marks_in(text), *self._placeholders_in(text)])
        if sorted(number for *_, number in places) != list(range(len(self._media))):
            raise ChatError(
                "the chat template does not write all messages that have images in them exactly once: images "
                f"{len(self._media)}, written {_times(len(places))}"
            )
        segments: list[Segment] = []
        end = 0
        for begin, after, number in places:
            segments += [*text_segments(text[end:begin], trust_contents=trust_contents), self._media[number]]
            end = after
        return [*segments, *text_segments(text[end:], trust_contents=trust_contents)]

    def _marks_in(self, text: str) -> list[tuple[int, int, int]]:
        """(begin, end, number of the image) of each mark."""
        return [(*found.span(), int(found[1])) for found in self._pattern.finditer(text)] if self._media else []

    def _placeholders_in(self, text: str) -> list[tuple[int, int, int]]:
        """The same of what the template wrote for the images that have no mark in the text, in their order."""
        if self._placeholder is None or not self._media:
            return []
        marked = {number for *_, number in self._marks_in(text)}
        left = [number for number in range(len(self._media)) if number not in marked]
        spans = _written(text, self._placeholder)
        if len(spans) != len(left):
            raise ChatError(
                f"the chat template wrote what stands for an image ({self._placeholder!r}) {_times(len(spans))}, and "
                f"images of the messages that belong there: {len(left)}"
            )
        return [(*span, number) for span, number in zip(spans, left, strict=True)]


@lru_cache(maxsize=64)
def writes_images(template: MessageTemplate, placeholder: str) -> bool:
    """Whether the template writes a part of type "image" as this text: found out by one rendering."""
    parts = [{"type": "image"}, _text_part(CONTENT)]
    try:
        text = template.render([{"role": "user", "content": parts}], add_generation_prompt=True)
    except ChatError:
        return False
    return CONTENT in text and len(_written(text, placeholder)) == 1


def _written(text: str, placeholder: str) -> list[tuple[int, int]]:
    """Where the template itself wrote the placeholder."""
    found = re.finditer(re.escape(placeholder), text)
    trusted = trusted_spans(text)
    return [each.span() for each in found if any(a <= each.start() and each.end() <= b for a, b in trusted)]


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
