"""Inputs of embeddings and documents to rank: texts, token ids, and texts with an image, as Jina's API has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from ollama_engine.chat.message_images import read_image_part
from ollama_engine.segments import Segment, Text
from ollama_engine.server.errors import ApiError
from ollama_engine.server.requests.schemas import Schema

if TYPE_CHECKING:
    from ollama_engine.runner.request.prompts import Prompt

__all__ = ["EmbeddingInput", "embedding_prompt"]


class EmbeddingInput(Schema):
    """A text, an image, or an image with a text behind it."""

    text: str | None = None
    image: str | None = Field(None, description="a data URL, or the file in base64")


def embedding_prompt(where: str, given: str | list[int] | EmbeddingInput) -> Prompt:
    """The same for the engine. Raises ApiError for an object with neither, ChatError for what is no image."""
    if not isinstance(given, EmbeddingInput):
        return given
    if given.image is None and given.text is not None:
        return given.text
    segments: list[Segment] = []
    if given.image is not None:
        segments.append(read_image_part(where, {"type": "image_url", "image_url": given.image}))
    if given.text:
        segments.append(Text(given.text))
    if not segments:
        raise ApiError(400, f'{where}: expected an object with "text", "image" or both', param=where)
    return segments
