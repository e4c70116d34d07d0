"""Bodies of Anthropic's requests. Fields that are not named here are taken too, and do nothing: the log names them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ollama_engine.server.requests.schemas import MOST_MESSAGES

__all__ = ["CountRequest", "MessagesRequest"]


class Schema(BaseModel):
    """A JSON object whose fields have the types they say, and that may have others."""

    model_config = ConfigDict(extra="allow", strict=True)


class InputMessage(Schema):
    """A turn of the conversation: a text, or blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class Tool(Schema):
    """A function that the model may call."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    type: str | None = None


class ToolChoice(Schema):
    """Whether a tool may be called, or has to be."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Schema):
    """Whether the model thinks before it answers, and for how many tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=0)


class OutputFormat(Schema):
    """The form of the answer."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Schema):
    """About the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Schema):
    """POST /v1/messages/count_tokens."""

    model: str
    messages: list[InputMessage] = Field(min_length=1, max_length=MOST_MESSAGES)
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
