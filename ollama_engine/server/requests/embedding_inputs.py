"""Inputs of embeddings and documents to rank: texts, token ids, and texts with an image, as Jina's API has them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from ollama_engine.chat.message_images import read_sent_image
from ollama_engine.segments import Segment, Text
from ollama_engine.server.errors import ApiError
from ollama_engine.server.requests.schemas import Schema

if TYPE_CHECKING:
    from ollama_engine.runner.request.prompts import Prompt

__all__ = ["EmbeddingInput", "embedding_prompts"]

OTHER_NAMES = ("image_url", "images")
"""Of images elsewhere. What documents have besides is theirs."""


class EmbeddingInput(Schema):
    """A text, an image, or an image with a text behind it."""

    text: str | None = None
    image: str | None = Field(None, description="a data URL, or the file in base64")


async def embedding_prompts(name: str, given: Sequence[str | list[int] | EmbeddingInput]) -> list[Prompt]:
    """Prompts of a request's inputs, for the engine; base64 is read in a thread. Raises as `_prompt`."""

    def read() -> list[Prompt]:
        return [_prompt(f"{name}[{number}]", each) for number, each in enumerate(given)]

    return await asyncio.to_thread(read) if EmbeddingInput in map(type, given) else read()


def _prompt(where: str, given: str | list[int] | EmbeddingInput) -> Prompt:
    """The same for the engine. Raises ApiError for an object with neither, ChatError for what is no image."""
    if not isinstance(given, EmbeddingInput):
        return given
    for name in OTHER_NAMES:
        if (given.model_extra or {}).get(name) is not None:
            told = f'{where}.{name}: an image is in "image", as a data URL or the file in base64'
            raise ApiError(400, told, param=f"{where}.{name}")
    if given.image is None and given.text is not None:
        return given.text
    segments: list[Segment] = []
    if given.image is not None:
        segments.append(read_sent_image(f"{where}.image", given.image))
    if given.text:
        segments.append(Text(given.text))
    if not segments:
        raise ApiError(400, f'{where}: expected an object with "text", "image" or both', param=where)
    return segments
