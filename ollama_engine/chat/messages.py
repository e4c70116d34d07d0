"""Messages as callers pass them, checked, in one form.

OpenAI's chat completions, Ollama's /api/chat and transformers differ in details. Arguments of tool calls are JSON text
or an object. Images are parts of the content or a list beside it. There is `tool_name` or `name`, `reasoning_content`,
`reasoning` or `thinking`. All of these are read, as dicts, dataclasses, or objects with `model_dump` (pydantic's).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ollama_engine.chat.message_images import is_kept, read_image_part, read_images
from ollama_engine.chat.plain_data import as_json, as_mapping, plain_data
from ollama_engine.errors import ChatError
from ollama_engine.segments import Media

__all__ = ["Content", "Message", "ToolCall", "read_messages"]

Content = str | tuple[str | Media, ...] | None
"""A text; texts and media in their order; or nothing, in a message that only calls tools."""

REASONING = ("reasoning_content", "thinking", "reasoning")
READ = {"role", "content", "images", "tool_calls", "tool_call_id", "tool_name", "name", *REASONING}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in an answer that is history.

    Attributes:
        name: the tool's name.
        arguments: an object, in the order it was written; empty where no JSON object was written, which only happens in
            histories that callers pass.
        id: the id that its result refers to.
        arguments_text: the arguments as they were written: JSON text, unless it is none.

    Raises ChatError for arguments that JSON cannot hold.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None
    arguments_text: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.arguments, Mapping):
            raise ChatError(
                f"arguments of {self.name}: expected an object, got {type(self.arguments).__name__}; "
                "give JSON text in a message that is a dict"
            )
        if not isinstance(self.arguments, dict):  # json and templates write no other
            object.__setattr__(self, "arguments", dict(self.arguments))
        if not self.arguments_text:
            object.__setattr__(self, "arguments_text", as_json(self.arguments, f"arguments of {self.name}"))

    @property
    def written(self) -> Mapping[str, Any] | str:
        """`arguments`, or the text that is no JSON object: what a template gets."""
        return self.arguments if self.arguments or _object(self.arguments_text) is not None else self.arguments_text


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    Attributes:
        role: "system", "developer", "user", "assistant", "tool", or another one that the model's template knows.
        content: its text and images.
        reasoning: the model's reasoning before the content.
        tool_calls: the model's tool calls.
        tool_call_id: the call that a tool's message is the result of.
        name: the tool's name, or the speaker's.
        extra: all other fields, which go to the template as they are.
    """

    role: str
    content: Content = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def media(self) -> tuple[Media, ...]:
        """Images in the content, in their order."""
        if not self.content or isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if isinstance(part, Media))

    @property
    def text(self) -> str:
        """The texts of the content, one behind the other."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part for part in self.content or () if isinstance(part, str))


def read_messages(messages: object) -> tuple[Message, ...]:
    """Checks and reads a conversation. Raises ChatError that names the message, by its number from 0, and the field."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise ChatError(
            f"messages: expected a list of messages such as [{{'role': 'user', 'content': 'Hello'}}], got "
            f"{type(messages).__name__}"
        )
    if not messages:
        raise ChatError("messages: expected one message at least, got an empty list")
    first = messages[0]
    if isinstance(first, (list, tuple)) and first and not isinstance(first[0], str):  # a pair of role and text is none
        raise ChatError(
            "messages: expected one conversation, got a list of them; call it for each, "
            "or map_batches, which computes many together"
        )
    return tuple(_read_message(f"messages[{number}]", message) for number, message in enumerate(messages))


def _read_message(where: str, given: object) -> Message:
    fields = as_mapping(where, _as_fields(given) if isinstance(given, Message) else given, is_kept)
    role = fields.get("role")
    if not isinstance(role, str) or not role:
        raise ChatError(f'{where}.role: expected "system", "user", "assistant" or "tool", got {role!r:.40}')
    calls = tuple(_read_calls(f"{where}.tool_calls", fields.get("tool_calls")))
    content = _with_images(_read_content(f"{where}.content", fields.get("content")), where, fields.get("images"))
    reasoning = next((key for key in REASONING if fields.get(key) is not None), "reasoning_content")
    if content is None and not calls and fields.get(reasoning) is None:
        raise ChatError(f"{where}.content: expected a text, or a list of parts, got None")
    return Message(
        role=role,
        content=content,
        reasoning=_text_or_none(where, fields, reasoning),
        tool_calls=calls,
        tool_call_id=_text_or_none(where, fields, "tool_call_id"),
        name=_text_or_none(where, fields, "tool_name" if fields.get("tool_name") is not None else "name"),
        extra={
            name: plain_data(value, f"{where}.{name}")
            for name, value in fields.items()
            if name not in READ and value is not None
        },
    )


def _as_fields(message: Message) -> dict[str, Any]:
    """A message object that a caller made. Its fields are not checked yet."""
    content: Any = message.content
    if isinstance(content, tuple):
        content = list(content)
    calls = [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments_text}}
        for call in message.tool_calls
    ]
    return {
        **message.extra,
        "role": message.role,
        "content": content,
        "reasoning_content": message.reasoning,
        "tool_calls": calls or None,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }


def _text_or_none(where: str, fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ChatError(f"{where}.{name}: expected a text, got {type(value).__name__}")


# -- content -----------------------------------------------------------------------------------------------------------


def _read_content(where: str, content: object) -> Content:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ChatError(f"{where}: expected a text, or a list of parts, got {type(content).__name__}")
    return tuple(_read_part(f"{where}[{number}]", part) for number, part in enumerate(content))


def _read_part(where: str, part: object) -> str | Media:
    if isinstance(part, (str, Media)):
        return part
    if is_kept(part):
        return Media(part)
    if not isinstance(part, dict):
        raise ChatError(f'{where}: expected a part such as {{"type": "text", "text": ...}}, got {type(part).__name__}')
    kind = part.get("type")
    if kind in ("text", "input_text", "output_text"):
        if not isinstance(part.get("text"), str):
            raise ChatError(f"{where}.text: expected a text, got {type(part.get('text')).__name__}")
        return str(part["text"])
    if kind in ("image", "image_url", "input_image"):
        return read_image_part(where, part)
    raise ChatError(f'{where}.type: expected "text", "image_url" or "image", got {kind!r:.40}')


def _with_images(content: Content, where: str, images: object) -> Content:
    """Ollama's list of images, which stand before the text."""
    if not images:
        return content
    found = read_images(f"{where}.images", images)
    return found + (content if isinstance(content, tuple) else (content,) if content else ())


# -- tool calls --------------------------------------------------------------------------------------------------------


def _read_calls(where: str, calls: object) -> Iterator[ToolCall]:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise ChatError(f"{where}: expected a list, got {type(calls).__name__}")
    for number, call in enumerate(calls):
        yield _read_call(f"{where}[{number}]", call)


def _read_call(where: str, call: object) -> ToolCall:
    if not isinstance(call, dict):
        raise ChatError(
            f'{where}: expected {{"function": {{"name": ..., "arguments": ...}}}}, got {type(call).__name__}'
        )
    function = call.get("function", call)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ChatError(f"{where}.function.name: expected the name of a tool, got {function!r:.60}")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, (str, dict)):
        raise ChatError(
            f"{where}.function.arguments: expected an object or its JSON text, got {type(arguments).__name__}"
        )
    text = arguments if isinstance(arguments, str) else as_json(arguments or {}, f"{where}.function.arguments")
    parsed = _object(arguments) if isinstance(arguments, str) else arguments
    return ToolCall(function["name"], parsed or {}, _text_or_none(where, call, "id"), text)


def _object(text: str) -> dict[str, Any] | None:
    """The object that JSON text has, an empty one for no text; None where the model has written something else."""
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
