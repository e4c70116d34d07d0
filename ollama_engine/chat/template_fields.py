"""Messages as the fields that templates read, in the form that a template can take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ollama_engine.chat.messages import Message, ToolCall
from ollama_engine.chat.template import ChatTemplate
from ollama_engine.errors import ChatError

__all__ = ["template_fields"]

NEEDLE = "needle"


def template_fields(template: ChatTemplate, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """What `ChatTemplate.render` takes. Media are not written by it: see `prompt_segments`."""
    known = "developer" in template.source
    return [_fields(template, message, known_developer=known) for message in messages]


def _fields(template: ChatTemplate, message: Message, *, known_developer: bool) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not known_developer else message.role
    found: dict[str, Any] = {"role": role, "content": _content(template, message)}
    optional = {
        "reasoning_content": message.reasoning,
        "tool_calls": [_call(template, call) for call in message.tool_calls] or None,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    return found | {name: value for name, value in optional.items() if value is not None} | dict(message.extra)


def _content(template: ChatTemplate, message: Message) -> Any:
    if message.content is None:
        return None
    if not takes_text(template):
        return [{"type": "text", "text": part} for part in _texts(message)]
    return message.text


def _texts(message: Message) -> list[str]:
    content = message.content or ""
    return [content] if isinstance(content, str) else [part for part in content if isinstance(part, str)]


def _call(template: ChatTemplate, call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments if takes_objects(template) else call.arguments_text
    found: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
    return found if call.id is None else {"id": call.id, **found}


@lru_cache(maxsize=64)
def takes_text(template: ChatTemplate) -> bool:
    """Whether it writes contents that are texts, not only lists of parts."""
    shown = _rendered(template, [{"role": "user", "content": NEEDLE}])
    if shown is not None and NEEDLE in shown:
        return True
    shown = _rendered(template, [{"role": "user", "content": [{"type": "text", "text": NEEDLE}]}])
    return shown is None or NEEDLE not in shown


@lru_cache(maxsize=64)
def takes_objects(template: ChatTemplate) -> bool:
    """Whether it writes arguments of tool calls that are objects; OpenAI's are JSON text, which some templates want."""
    as_object, as_text = (
        _rendered(template, [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "needle123", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
        ])
        for arguments in ({NEEDLE: "x"}, '{"needle": "x"}')
    )  # fmt: skip
    if as_object is None or f"{{'{NEEDLE}'" in as_object:  # Python's form of a dict, which no model was trained on
        return as_text is None
    return NEEDLE in as_object or as_text is None or NEEDLE not in as_text


def _rendered(template: ChatTemplate, messages: list[dict[str, Any]]) -> str | None:
    try:
        return template.render(messages)
    except ChatError:
        return None
