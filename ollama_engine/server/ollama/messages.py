"""Messages of Ollama's requests, as the engine takes them, and the images that come in base64."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ollama_engine.chat.message_images import from_base64
from ollama_engine.server.errors import ApiError

if TYPE_CHECKING:
    from ollama_engine.server.ollama.schemas import ChatMessage
    from ollama_engine.server.requests.prompts import Message

__all__ = ["as_messages", "image_files"]


async def as_messages(given: Sequence[ChatMessage]) -> list[Message]:
    """The messages in the engine's form. Texts never become paths. Raises ApiError for what is no base64."""
    return [_as_message(message, await image_files(message.images)) for message in given]


def _as_message(given: ChatMessage, images: list[bytes]) -> Message:
    message: Message = {"role": given.role, "content": given.content or ""}
    if images:
        message["images"] = images
    if given.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in given.tool_calls
        ]
    for name in ("thinking", "tool_name", "tool_call_id"):
        if getattr(given, name) is not None:
            message[name] = getattr(given, name)
    return message


async def image_files(images: Sequence[str] | None) -> list[bytes]:
    """The files of images that came in base64, with or without the head of a data URL. Raises ApiError."""
    return await asyncio.to_thread(_image_files, images) if images else []


def _image_files(images: Sequence[str]) -> list[bytes]:
    files = []
    for number, text in enumerate(images):
        body = text.partition(",")[2] if text.startswith("data:") else text
        try:
            files.append(from_base64(body))
        except ValueError:
            raise ApiError(400, f"images[{number}]: illegal base64 data") from None
    return files
