"""Bodies of requests that more than one API takes. Fields that are not named are taken too."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["MOST_MESSAGES", "ChatMessage", "Schema"]

MOST_MESSAGES = 1 << 13
"""Messages of one conversation. Each takes up to 20 microseconds of the event loop's time."""


class Schema(BaseModel):
    """A JSON object whose fields have the types they say, and that may have others."""

    model_config = ConfigDict(extra="allow", strict=True)


class ChatMessage(Schema):
    """A message of a conversation; the engine checks the parts of its content and its calls."""

    role: str = Field(description='"system", "developer", "user", "assistant" or "tool"')
    content: str | list[dict[str, Any]] | None = Field(None, description="a text, or parts: text, image_url")
    reasoning_content: str | None = Field(None, description="what the model thought before it said that")
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None
