"""Messages of Ollama's requests, as the engine takes them, and the images that come in base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ollama_engine.server.errors import ApiError

if TYPE_CHECKING:
    from ollama_engine.server.ollama.schemas import ChatMessage
    from ollama_engine.server.requests.prompts import Message

__all__ = ["as_message", "image_files"]


def as_message(given: ChatMessage) -> Message:
    """The message in the engine's form. Texts never become paths. Raises ApiError for what is no base64."""
    message: Message = {"role": given.role, "content": given.content or ""}
    if given.images:
        message["images"] = image_files(given.images)
    if given.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in given.tool_calls
        ]
    for name in ("thinking", "tool_name", "tool_call_id"):
        if getattr(given, name) is not None:
            message[name] = getattr(given, name)
    return message


def image_files(images: Sequence[str] | None) -> list[bytes]:
    """The files of images that came in base64, with or without the head of a data URL. Raises ApiError."""
    files = []
    for number, text in enumerate(images or ()):
        body = text.partition(",")[2] if text.startswith("data:") else text
        try:
            files.append(base64.b64decode("".join(body.split()), validate=True))
        except (binascii.Error, ValueError):
            raise ApiError(400, f"images[{number}]: illegal base64 data") from None
    return files
