"""Bodies of Ollama's API. Fields of other names are accepted; values of other types are refused.

Of requests to a model, such fields are kept, so that the log can name them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ollama_engine.server.requests.embedding_inputs import EmbeddingInput
from ollama_engine.server.requests.schemas import MOST_MESSAGES

__all__ = ["ChatMessage", "ChatRequest", "EmbedRequest", "EmbeddingsRequest", "GenerateRequest", "TextRequest"]

Think = bool | Literal["low", "medium", "high", "max"]
AnswerFormat = Literal["json", ""] | dict[str, Any]


class Body(BaseModel):
    """The base of all bodies: JSON's own types, none converted to another."""

    model_config = ConfigDict(strict=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, given: Any) -> Any:
        """As Go reads a body: a field that is null was left out."""
        if not isinstance(given, dict) or None not in given.values():
            return given
        return {name: value for name, value in given.items() if value is not None}


class ModelRequest(Body):
    """A request to a model."""

    model_config = ConfigDict(extra="allow")

    model: str = Field("", description="its name: [host/][namespace/]model[:tag]", examples=["demo"])
    options: dict[str, Any] | None = Field(None, description="num_ctx, temperature, seed ...: see the documentation")
    keep_alive: float | str | None = Field(
        None, description='how long the model stays loaded: seconds, "5m", negative for ever, 0 to unload it'
    )


class TextRequest(ModelRequest):
    """A request for an answer."""

    stream: bool | None = Field(None, description="whether the answer comes in lines of JSON (default true)")
    format: AnswerFormat | None = Field(None, description='"json", or a JSON schema that the answer follows')
    think: Think | None = Field(None, description="whether the model reasons before it answers, or how much")
    truncate: bool | None = Field(None, description="cut what does not fit into the context (default true)")
    shift: bool | None = Field(
        None, description="go on when the context is full, without what is oldest (default true)"
    )
    logprobs: bool | None = Field(None, description="report the log-probabilities of the answer's tokens")
    top_logprobs: int | None = Field(None, description="and those of this many best tokens [0..20]")
    debug_render_only: bool | None = Field(
        None, alias="_debug_render_only", description="answer with the prompt that the template makes, nothing else"
    )


class GenerateRequest(TextRequest):
    """POST /api/generate."""

    prompt: str = ""
    suffix: str = Field("", description="what follows the answer: the model fills in between")
    system: str = Field("", description="a system message instead of the model's own")
    template: str = Field("", description="a template (Go's syntax) instead of the model's own")
    context: list[int] | None = Field(None, description="what an earlier answer gave as its `context`")
    raw: bool = Field(False, description="the prompt goes to the model as it is")
    images: list[str] | None = Field(None, description="files of images in base64")


class ToolFunction(Body):
    """A tool that was called."""

    name: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = None


class ToolCall(Body):
    """A call in the history."""

    id: str | None = None
    function: ToolFunction


class ChatMessage(Body):
    """A message of a conversation."""

    role: Annotated[str, Field(min_length=1, examples=["user"])]
    content: str | None = ""
    thinking: str | None = None
    images: list[str] | None = Field(None, description="files of images in base64")
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ChatRequest(TextRequest):
    """POST /api/chat."""

    messages: list[ChatMessage] = Field(default_factory=list, max_length=MOST_MESSAGES)
    tools: list[dict[str, Any]] | None = Field(None, description="functions that the model may call")


class EmbedRequest(ModelRequest):
    """POST /api/embed."""

    input: str | EmbeddingInput | list[str | EmbeddingInput] | None = Field(
        None, description='a text, {"text": ..., "image": ...}, or several of these'
    )
    truncate: bool | None = Field(None, description="cut texts that do not fit into the context (default true)")
    dimensions: int | None = Field(None, description="numbers of each vector to keep")
    prompt_name: str | None = Field(None, description="what comes before each text, such as query")
    task: str | None = Field(None, description="the adapter that computes the texts")


class EmbeddingsRequest(ModelRequest):
    """POST /api/embeddings, the older form of /api/embed."""

    prompt: str = ""
