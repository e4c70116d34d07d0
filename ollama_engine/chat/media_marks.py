"""Images in messages: marks stand for them while a template writes texts, and give way to the images in the prompt."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from ollama_engine.chat.messages import Message
from ollama_engine.errors import ChatError
from ollama_engine.segments import Media, Segment, Text

__all__ = ["MediaMarks"]


class MediaMarks:
    """The images of one conversation. A mark holds a random number, so a user cannot type it."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(8)
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

    def place(self, segments: Sequence[Text]) -> list[Segment]:
        """The segments with the images where their marks are. Raises ChatError for an image that the template lost."""
        if not self._media:
            return list(segments)
        found: list[Segment] = []
        for segment in segments:
            for number, piece in enumerate(re.split(f"<image-{self._secret}-([0-9]+)>", segment.text)):
                if number % 2:
                    found.append(self._media[int(piece)])
                elif piece:
                    found.append(replace(segment, text=piece))
        if sum(isinstance(segment, Media) for segment in found) != len(self._media):
            raise ChatError("the chat template does not write all messages that have images in them")
        return found
