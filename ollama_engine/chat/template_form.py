"""In which form a template takes messages: found out by rendering short conversations, once for each template.

Templates agree on no form. Some write arguments of tool calls that are objects, some JSON text; some want an empty
content beside tool calls, some none; a few know contents as lists of parts only, or no system message. What is
found out is what a template writes out in full and not in Python's spelling of a dict, which no model was trained on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from ollama_engine.chat.messages import Message, ToolCall
from ollama_engine.chat.provenance import joined
from ollama_engine.chat.template import MessageTemplate
from ollama_engine.errors import ChatError

__all__ = ["PartsOf", "TemplateForm", "form_of", "writes_tools"]

NoContent = Literal["absent", "empty", "none"]
PartsOf = Callable[[Sequence[str]], "list[dict[str, Any]] | None"]

KEY, VALUE, NAME, CONTENT, ID = "needlekey", "needlevalue", "needlename", "needlecontent", "needle123"
TOOL = "needletool"
_USER, _ANSWER = {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}
_RESULT = {"role": "tool", "tool_call_id": ID, "name": NAME, "content": CONTENT}
_PARTS = [{"type": "text", "text": CONTENT}]
_PARAMETERS = {"type": "object", "properties": {"a": {"type": "string", "description": "x"}}, "required": ["a"]}
_TOOLS = [{"type": "function", "function": {"name": TOOL, "description": "x", "parameters": _PARAMETERS}}]


@dataclass(frozen=True, slots=True)
class TemplateForm:
    """How a template takes what a conversation says.

    Attributes:
        parts: contents are lists of parts, not texts.
        arguments_as_text: arguments of tool calls are JSON text, not objects.
        no_content: what a message with tool calls only has as its content.
        writes_calls: whether tool calls appear in what it writes.
        writes_results: whether messages of tools do.
        takes_system: whether it has a place for a system message.
        knows_developer: whether it reads the role "developer", which is "system" to others.
    """

    parts: bool = False
    arguments_as_text: bool = False
    no_content: NoContent = "absent"
    writes_calls: bool = True
    writes_results: bool = True
    takes_system: bool = True
    knows_developer: bool = False

    def fields(self, message: Message, parts_of: PartsOf | None = None) -> dict[str, Any]:
        """The message as the template reads it. `parts_of` gives the parts of a content with images, else None."""
        role = "system" if message.role == "developer" and not self.knows_developer else message.role
        required: dict[str, Any] = {"role": role, **self._content(message, parts_of)}
        optional = {
            "reasoning_content": message.reasoning,
            "tool_calls": [self._call(call) for call in message.tool_calls] or None,
            "tool_call_id": message.tool_call_id,
            "name": message.name,
        }
        return required | {name: value for name, value in optional.items() if value is not None} | dict(message.extra)

    def _content(self, message: Message, parts_of: PartsOf | None) -> dict[str, Any]:
        if message.content is None or (message.tool_calls and not message.content):
            return _without_content(self.no_content)
        content = message.content
        texts = [content] if isinstance(content, str) else [part for part in content if isinstance(part, str)]
        parts = None if parts_of is None else parts_of(texts)
        if parts is not None:
            return {"content": parts}
        if self.parts:
            return {"content": [{"type": "text", "text": text} for text in texts]}
        return {"content": joined(texts)}

    def _call(self, call: ToolCall) -> dict[str, Any]:
        arguments = call.arguments_text if self.arguments_as_text else call.written
        found: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
        return found if call.id is None else {"id": call.id, **found}


@lru_cache(maxsize=64)
def form_of(template: MessageTemplate) -> TemplateForm:
    """Found out at the first call, by some ten renderings of a few messages."""
    parts = not _writes(template, [{"role": "user", "content": CONTENT}], CONTENT) and _writes(
        template, [{"role": "user", "content": _PARTS}], CONTENT
    )
    calls = _form_of_calls(template)
    system = [{"role": "system", "content": CONTENT}, _USER]
    return TemplateForm(
        parts=parts,
        arguments_as_text=calls is not None and calls[0],
        no_content="empty" if calls is None else calls[1],
        writes_calls=calls is not None,
        writes_results=_writes_results(template, calls, parts=parts),
        takes_system=parts or _writes(template, system, CONTENT) or not _writes(template, [_USER], ""),
        knows_developer="developer" in template.source,
    )


@lru_cache(maxsize=128)
def writes_tools(template: MessageTemplate, *, after_system: bool) -> bool:
    """Whether definitions of tools get into the prompt of a user's message, behind a system message or without one.

    Also where the template refuses such a conversation: what it says of the real one is for the caller.
    """
    content = _PARTS if form_of(template).parts else CONTENT
    messages = [{"role": role, "content": content} for role in ("system", "user")[not after_system :]]
    try:
        return TOOL in template.render(messages, tools=_TOOLS, add_generation_prompt=True)
    except ChatError:
        return True


def _form_of_calls(template: MessageTemplate) -> tuple[bool, NoContent] | None:
    """(arguments as text, what stands for no content); None where no form makes the template write a call.

    In the middle of a conversation with tools if it can be, for that is where most calls are.
    """
    contents: tuple[NoContent, ...] = ("absent", "empty", "none")
    for after, tools in (([_RESULT, _ANSWER, _USER], _TOOLS), ([_RESULT], _TOOLS), ([], _TOOLS), ([], None)):
        for form in itertools.product((False, True), contents):
            if _writes(template, [_USER, _calling(*form), *after], NAME, KEY, VALUE, tools=tools):
                return form
    return None


def _writes_results(template: MessageTemplate, calls: tuple[bool, NoContent] | None, *, parts: bool) -> bool:
    before = [_USER, _ANSWER if calls is None else _calling(*calls)]
    result = {**_RESULT, "content": _PARTS} if parts else _RESULT
    return any(_writes(template, [*before, result], CONTENT, tools=tools) for tools in (_TOOLS, None))


def _calling(as_text: bool, content: NoContent) -> dict[str, Any]:
    arguments: Any = f'{{"{KEY}": "{VALUE}"}}' if as_text else {KEY: VALUE}
    call = {"id": ID, "type": "function", "function": {"name": NAME, "arguments": arguments}}
    return {"role": "assistant", **_without_content(content), "tool_calls": [call]}


def _without_content(form: NoContent) -> dict[str, Any]:
    return {} if form == "absent" else {"content": "" if form == "empty" else None}


def _writes(
    template: MessageTemplate, messages: Sequence[Mapping[str, Any]], *needles: str, tools: Sequence[Any] | None = None
) -> bool:
    """Whether the template writes all of these, and none of them in Python's quotes or twice in JSON's."""
    try:
        text = template.render(messages, tools=tools, keep_none=True)
    except ChatError:
        return False
    spoiled = (f"'{KEY}'", f'\\"{KEY}')
    return all(needle in text for needle in needles) and not any(mark in text for mark in spoiled)
