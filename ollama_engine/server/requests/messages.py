"""Messages in OpenAI's form, as the engine takes them. No field of theirs can name a file of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ollama_engine.server.errors import ApiError
from ollama_engine.server.requests.schemas import ChatMessage

__all__ = ["as_dicts", "engine_messages", "engine_tool_choice", "engine_tools"]

TEXTS = ("text", "input_text", "output_text")
FILES = ("images", "image")
"""Fields that the engine may read as paths."""


def as_dicts(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The fields that were sent, others than the named ones included."""
    return [message.model_dump(exclude_unset=True) for message in messages]


def engine_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation. Raises ApiError for parts other than text and images."""
    if not messages:
        raise ApiError(400, "messages: expected one message at least, got an empty list", param="messages")
    return [_message(f"messages[{number}]", message) for number, message in enumerate(messages)]


def _message(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    for name in FILES:
        if given.get(name) is not None:
            raise ApiError(
                400, f'{where}.{name} is no field of a message; pass a part of type "image_url" in its content',
                param=f"{where}.{name}",
            )  # fmt: skip
    message = dict(given)
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_part(f"{where}.content[{number}]", part) for number, part in enumerate(content)]
    if content is None and not message.get("tool_calls"):  # as a tool without a result has it
        message["content"] = message.pop("refusal", None) or ""
    return message


def _part(where: str, part: Any) -> Any:
    """A part; the engine checks the rest of it."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in TEXTS:
        return {"type": "text", "text": part.get("text")}
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    if kind in ("image_url", "input_image"):
        return {"type": "image_url", "image_url": part.get("image_url")}
    raise ApiError(
        400, f'{where}.type: expected "text" or "image_url", got {kind!r:.40}', param=f"{where}.type"
    )  # fmt: skip


def engine_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The functions that may be called. Raises ApiError for tools that OpenAI's own servers run."""
    for number, tool in enumerate(tools or ()):
        if tool.get("type", "function") != "function":
            raise ApiError(
                400, f'tools[{number}].type: only "function" can be called here, got {tool.get("type")!r:.40}',
                param=f"tools[{number}].type",
            )  # fmt: skip
    return [dict(tool) for tool in tools] if tools else None


def engine_tool_choice(
    choice: str | Mapping[str, Any] | None, tools: list[dict[str, Any]] | None
) -> tuple[str | Mapping[str, Any] | None, list[dict[str, Any]] | None]:
    """The choice and the tools to choose from; "allowed_tools" are a choice among some of the tools."""
    if isinstance(choice, str) and choice not in ("auto", "none", "required"):
        raise ApiError(
            400, f'tool_choice is "auto", "none", "required" or an object that names a tool, got {choice!r:.40}',
            param="tool_choice",
        )  # fmt: skip
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return choice, tools
    allowed = choice.get("allowed_tools", choice)
    listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(tool, Mapping) for tool in listed):
        raise ApiError(400, "tool_choice.allowed_tools.tools: expected a list of tools", param="tool_choice")
    names = {_name_of(tool) for tool in listed}
    return allowed.get("mode", "auto"), [tool for tool in tools or () if _name_of(tool) in names]


def _name_of(tool: Mapping[str, Any]) -> Any:
    function = tool.get("function", tool)
    return function.get("name") if isinstance(function, Mapping) else None
