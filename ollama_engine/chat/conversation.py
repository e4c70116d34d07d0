"""From checked messages to a rendered text: each template gets them in the form that it takes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ollama_engine.chat.dialects import Dialect, call_example, detect
from ollama_engine.chat.messages import Message
from ollama_engine.chat.provenance import Traced, joined
from ollama_engine.chat.template import MessageTemplate
from ollama_engine.chat.template_form import PartsOf, form_of, writes_tools
from ollama_engine.errors import ChatError

__all__ = ["render_conversation"]

log = logging.getLogger(__name__)

SYSTEM = ("system", "developer")


def render_conversation(
    template: MessageTemplate, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None,
    dialect: Dialect | None = None, parts_of: PartsOf | None = None, **options: Any,
) -> str:  # fmt: skip
    """The text of a conversation, marked by who wrote it.

    Nothing gets lost where a template has no place for it. A system message goes to the user's that follows, tool calls
    go into the content, and a tool's result becomes a message of the user. Definitions of tools go into the system
    message, with how to call them. All of it is logged.

    Args:
        template: the chat template.
        messages: checked ones.
        tools: checked definitions (see `read_tools`).
        dialect: how the answer's calls will be read; None takes what the template tells.
        parts_of: gives the parts of a content with images, where the template knows such parts.
        options: see `ChatTemplate.render`.

    Raises ChatError as `ChatTemplate.render` does, and where no message can take what has no place.
    """
    form = form_of(template)
    after_system = form.takes_system and messages[0].role in SYSTEM
    if tools and not writes_tools(template, after_system=after_system):
        _warn_of_tools(template)
        # A template may write them behind a system message only: a new one would make it write them, too.
        to_system = after_system or (form.takes_system and not writes_tools(template, after_system=True))
        messages = _with_tools(messages, _tools_text(tools, dialect or detect(template.source)), to_system=to_system)
    if not form.takes_system and any(message.role in SYSTEM for message in messages):
        messages = _system_first(messages)
    if not form.writes_calls and any(message.tool_calls for message in messages):
        messages = [_calls_in_content(message) for message in messages]
    if not form.writes_results and any(message.role == "tool" for message in messages):
        messages = [_result_of_user(message) for message in messages]
    return template.render(
        [form.fields(message, parts_of) for message in messages],
        tools=tools,
        keep_none=form.no_content == "none",
        **options,
    )


@lru_cache(maxsize=64)
def _warn_of_tools(template: MessageTemplate) -> None:
    """Once for each template: this says something of the model, not of a conversation."""
    log.warning(
        "the chat template has no place for tools; their definitions are part of the system message, or of the user's "
        "first one. The model may not have been trained to call any"
    )


def _tools_text(tools: Sequence[Mapping[str, Any]], dialect: Dialect) -> str:
    """The text that tells the model its tools and the form of a call, for templates that do not.

    Control tokens in the form of a call are tokens, as in templates; in definitions they are text.
    """
    given = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = call_example(dialect)
    form = (
        "" if example is None else f"\n\nTo call a tool, answer in this form, with its name and arguments:\n{example}"
    )
    begin = "You can call these tools. Their definitions, one on each line, have JSON schemas of the arguments:\n"
    return joined([begin, given, Traced.whole(form)])


def _with_tools(messages: Sequence[Message], tools_text: str, *, to_system: bool) -> list[Message]:
    """Puts the text about tools behind the system message at the beginning, or before the user's first text."""
    if not to_system:
        at = next((number for number, message in enumerate(messages) if message.role == "user"), None)
        if at is None:
            raise ChatError("the chat template has no place for tools, and there is no user's message to take them")
        first = replace(messages[at], content=(joined([tools_text, "\n\n"]), *_parts(messages[at])))
        return [*messages[:at], first, *messages[at + 1 :]]
    if messages[0].role not in SYSTEM:
        return [Message("system", tools_text), *messages]
    between = "\n\n" if messages[0].text else ""
    return [replace(messages[0], content=(*_parts(messages[0]), joined([between, tools_text]))), *messages[1:]]


def _parts(message: Message) -> tuple[Any, ...]:
    return message.content if isinstance(message.content, tuple) else (message.text,)


def _system_first(messages: Sequence[Message]) -> list[Message]:
    """System messages before the text of the user's message that follows them."""
    log.info("the chat template has no place for a system message; it stands before the user's first message")
    merged: list[Message] = []
    waiting = ""
    for message in messages:
        if message.role in SYSTEM:
            waiting = joined([waiting, *_parts(message), "\n\n"])
        elif waiting and message.role == "user":
            merged.append(replace(message, content=(waiting, *_parts(message))))
            waiting = ""
        else:
            merged.append(message)
    if waiting:
        raise ChatError("the chat template has no place for a system message, and no user's message follows it")
    return merged


def _calls_in_content(message: Message) -> Message:
    if not message.tool_calls:
        return message
    log.info("the chat template does not write tool calls; they are part of the content, as JSON")
    calls = [
        json.dumps({"name": call.name, "arguments": call.written}, ensure_ascii=False) for call in message.tool_calls
    ]
    before = ("\n",) if message.text else ()
    return replace(message, content=(*_parts(message), *before, "\n".join(calls)), tool_calls=())


def _result_of_user(message: Message) -> Message:
    if message.role != "tool":
        return message
    log.info("the chat template does not write results of tools; they are messages of the user, as JSON")
    found = {"tool": message.name, "tool_call_id": message.tool_call_id, "result": message.text}
    text = json.dumps({name: value for name, value in found.items() if value is not None}, ensure_ascii=False)
    return Message("user", text)
