"""From checked messages to a rendered text: each template gets them in the form that it takes."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ollama_engine.chat.messages import Message
from ollama_engine.chat.template import ChatTemplate
from ollama_engine.chat.template_form import form_of
from ollama_engine.errors import ChatError

__all__ = ["render_conversation"]

log = logging.getLogger(__name__)

SYSTEM = ("system", "developer")


def render_conversation(template: ChatTemplate, messages: Sequence[Message], **options: Any) -> str:
    """The text of a conversation, marked by who wrote it. `options`: see `ChatTemplate.render`.

    Nothing gets lost where a template has no place for it: a system message goes to the user's that follows, tool calls
    go into the content, and a tool's result becomes a message of the user, which is logged. Raises ChatError as
    `ChatTemplate.render` does.
    """
    form = form_of(template)
    if not form.takes_system and any(message.role in SYSTEM for message in messages):
        messages = _system_first(messages)
    if not form.writes_calls and any(message.tool_calls for message in messages):
        messages = [_calls_in_content(message) for message in messages]
    if not form.writes_results and any(message.role == "tool" for message in messages):
        messages = [_result_of_user(message) for message in messages]
    return template.render(
        [form.fields(message) for message in messages], keep_none=form.no_content == "none", **options
    )


def _system_first(messages: Sequence[Message]) -> list[Message]:
    """System messages before the text of the user's message that follows them."""
    log.info("the chat template has no place for a system message; it stands before the user's first message")
    found: list[Message] = []
    waiting = ""
    for message in messages:
        if message.role in SYSTEM:
            waiting += message.text + "\n\n"
        elif waiting and message.role == "user":
            content = message.content if isinstance(message.content, tuple) else (message.text,)
            found.append(replace(message, content=(waiting, *content)))
            waiting = ""
        else:
            found.append(message)
    if waiting:
        raise ChatError("the chat template has no place for a system message, and no user's message follows it")
    return found


def _calls_in_content(message: Message) -> Message:
    if not message.tool_calls:
        return message
    log.info("the chat template does not write tool calls; they are part of the content, as JSON")
    calls = [
        json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False) for call in message.tool_calls
    ]
    content = message.content if isinstance(message.content, tuple) else (message.text,)
    before = ("\n",) if message.text else ()
    return replace(message, content=(*content, *before, "\n".join(calls)), tool_calls=())


def _result_of_user(message: Message) -> Message:
    if message.role != "tool":
        return message
    log.info("the chat template does not write results of tools; they are messages of the user, as JSON")
    found = {"tool": message.name, "tool_call_id": message.tool_call_id, "result": message.text}
    text = json.dumps({name: value for name, value in found.items() if value is not None}, ensure_ascii=False)
    return Message("user", text)
