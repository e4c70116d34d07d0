"""Requests of OpenAI's Responses API, as chats that the engine answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from ollama_engine.server.errors import ApiError
from ollama_engine.server.openai.formats import JsonSchema, ResponseFormat
from ollama_engine.server.openai.schemas import Reasoning, SamplingFields
from ollama_engine.server.requests.messages import engine_messages, engine_tool_choice, engine_tools
from ollama_engine.server.requests.schemas import MOST_MESSAGES, Schema

__all__ = ["ResponseRequest", "chat_options", "input_messages"]

ELSEWHERE = {
    "previous_response_id": "nothing is stored here; send the whole conversation in input",
    "conversation": "nothing is stored here; send the whole conversation in input",
    "prompt": "there are no stored prompts here; send input and instructions",
    "background": "there are no jobs here; stream the answer, or wait for it",
}
"""Fields that need a server that stores what was said, and what to do instead."""


class TextFormat(Schema):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    name: str | None = None


class TextOptions(Schema):
    """About the text of the answer."""

    format: TextFormat | None = None


class ResponseRequest(SamplingFields):
    """POST /v1/responses."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncation: Literal["auto", "disabled"] | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None

    def wanted_format(self) -> ResponseFormat | None:
        """The form of the answer as chat completions have it."""
        form = self.text.format if self.text else None
        if form is None:
            return None
        schema = None if form.json_schema is None else JsonSchema(name=form.name, schema=form.json_schema)
        return ResponseFormat(type=form.type, json_schema=schema)

    def refuse_what_needs_a_store(self) -> None:
        """Raises ApiError that says what to do instead."""
        for name, instead in ELSEWHERE.items():
            if getattr(self, name, None):
                raise ApiError(400, f"{name}: {instead}", param=name)


def chat_options(request: ResponseRequest) -> dict[str, Any]:
    """Tools, the choice among them, and what happens when the context is full."""
    tools = engine_tools([_nested(tool) for tool in request.tools or ()])
    choice, tools = engine_tool_choice(request.tool_choice, tools)
    options = {
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "on_overflow": "truncate" if request.truncation == "auto" else None,
        "drop_messages": True if request.truncation == "auto" else None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _nested(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function as chat completions write it."""
    if tool.get("type") != "function" or "function" in tool:
        return dict(tool)
    return {"type": "function", "function": {name: tool[name] for name in tool if name not in ("type", "strict")}}


def input_messages(request: ResponseRequest) -> list[dict[str, Any]]:
    """The conversation. Raises ApiError for items that cannot be read here."""
    given = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    if len(given) > MOST_MESSAGES:
        raise ApiError(400, f"input: expected {MOST_MESSAGES} items at most, got {len(given)}", param="input")
    messages = list(_messages(given))
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    if not messages:
        raise ApiError(400, "input: expected a text, or one item at least", param="input")
    return engine_messages(messages)


def _messages(items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Messages of items: reasoning, text and calls that follow each other are one message of the assistant."""
    turn: dict[str, Any] | None = None
    for number, item in enumerate(items):
        where, kind = f"input[{number}]", item.get("type") or "message"
        of_assistant = kind in ("reasoning", "function_call") or (kind == "message" and item.get("role") == "assistant")
        if of_assistant:
            if turn is not None and kind != "function_call" and turn.get("tool_calls"):
                yield turn
                turn = None
            turn = turn or {"role": "assistant"}
            _extend(turn, where, kind, item)
            continue
        if turn is not None:
            yield turn
            turn = None
        if kind == "message":
            yield {"role": item.get("role"), "content": item.get("content")}
        elif kind == "function_call_output":
            yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        else:
            raise ApiError(400, f"{where}.type: {kind!r:.40} cannot be read here", param=f"{where}.type")
    if turn is not None:
        yield turn


def _extend(turn: dict[str, Any], where: str, kind: str, item: Mapping[str, Any]) -> None:
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        turn.setdefault("tool_calls", []).append({"id": item.get("call_id"), "type": "function", "function": function})
    elif kind == "reasoning":
        turn["reasoning_content"] = turn.get("reasoning_content", "") + _reasoning(where, item)
    else:
        content = item.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        turn["content"] = [*turn.get("content", []), *parts]


def _reasoning(where: str, item: Mapping[str, Any]) -> str:
    """The model's reasoning, else the summary of it."""
    parts = item.get("content") or item.get("summary") or []
    texts = [part.get("text") if isinstance(part, Mapping) else None for part in parts] if _listed(parts) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(400, f"{where}.content: expected a list of texts", param=where)
    return "".join(str(text) for text in texts)


def _listed(value: object) -> bool:
    return isinstance(value, list)
