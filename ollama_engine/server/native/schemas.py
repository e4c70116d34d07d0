"""Bodies of requests to the engine's own routes, with the fields that llama.cpp's server has."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from ollama_engine.server.requests.embedding_inputs import EmbeddingInput
from ollama_engine.server.requests.schemas import MOST_MESSAGES, ChatMessage, Schema

__all__ = ["DetokenizeRequest", "PriorityRequest", "RankRequest", "TemplateRequest", "TokenizeRequest"]

MODEL = "which model; the one that is loaded where this is left out"


class NativeRequest(Schema):
    """A body that may name a model."""

    model: str | None = Field(None, description=MODEL)


class TokenizeRequest(NativeRequest):
    """POST /tokenize."""

    content: str
    add_special: bool = Field(False, description="begin as a prompt does, with the token that the model wants there")
    parse_special: bool = Field(True, description="read the texts of control tokens as those tokens")
    with_pieces: bool = Field(False, description="give the text of each token too")


class DetokenizeRequest(NativeRequest):
    """POST /detokenize."""

    tokens: list[Annotated[int, Field(ge=0, le=2**31 - 1)]]


class TemplateRequest(NativeRequest):
    """POST /apply-template."""

    messages: list[ChatMessage] = Field(max_length=MOST_MESSAGES)
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = Field(True, description="end with the beginning of an answer")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables of the chat template")


class RankRequest(NativeRequest):
    """POST /rerank, as llama.cpp's server and Jina have it."""

    query: str
    documents: list[str | EmbeddingInput] = Field(min_length=1, description='texts, or objects with "text", "image"')
    top_n: int | None = Field(None, ge=1, description="give the best of them only")
    return_documents: bool = Field(False, description="give the texts too")


class PriorityRequest(Schema):
    """PATCH /slots/ID."""

    priority: int = Field(ge=-(2**31), lt=2**31, description="0 by default; higher ones are served first")
