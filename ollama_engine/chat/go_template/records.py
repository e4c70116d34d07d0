"""Messages and tools as Ollama gives them to templates: structs with Go's names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ollama_engine.chat.go_template.values import JsonList, JsonMap, TemplateRecord
from ollama_engine.chat.open_end import REASONING
from ollama_engine.chat.provenance import Traced, joined
from ollama_engine.chat.template import ROLES
from ollama_engine.errors import ChatError

__all__ = ["collated", "system_text", "tool_records"]

GAP = Traced.whole("\n\n")


def collated(messages: Sequence[Mapping[str, Any]]) -> list[TemplateRecord]:
    """Messages as templates read them; neighbours of one role become one, tools' and those with more than text do not.

    Raises ChatError for contents that are no text.
    """
    records: list[TemplateRecord] = []
    for number, message in enumerate(messages):
        record = _record(number, message)
        last = records[-1] if records else None
        only_text = not record["ToolCalls"] and not record["Thinking"]
        if last is not None and last["Role"] == record["Role"] != "tool" and only_text:
            last["Content"] = joined([last["Content"], GAP, record["Content"]])
        else:
            records.append(record)
    return records


def system_text(messages: Sequence[TemplateRecord]) -> str:
    """All that system messages say."""
    texts: list[str] = []
    for message in messages:
        if message["Role"] == "system":
            texts += [GAP, message["Content"]] if texts else [message["Content"]]
    return joined(texts)


def _record(number: int, message: Mapping[str, Any]) -> TemplateRecord:
    role = str(message.get("role", ""))
    thinking = next((message[name] for name in REASONING if message.get(name) is not None), "")
    return TemplateRecord(
        {
            "Role": Traced.whole(role) if role in ROLES else role,
            "Content": _text(number, message.get("content")),
            "Thinking": thinking,
            "Images": [],
            "ToolCalls": [_call(place, call) for place, call in enumerate(message.get("tool_calls") or ())],
            "ToolName": message.get("tool_name") or message.get("name") or "",
            "ToolCallID": message.get("tool_call_id") or "",
        },
        {"Role": "role", "Content": "content", "Thinking": "thinking", "ToolCalls": "tool_calls",
         "ToolName": "tool_name", "ToolCallID": "tool_call_id"},
        ("Thinking", "ToolCalls", "ToolName", "ToolCallID"),
    )  # fmt: skip


def _text(number: int, content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [content]
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise ChatError(f"messages[{number}].content: a Go template takes text only")
        texts.append(text)
    return joined(texts)


def _call(place: int, call: Mapping[str, Any]) -> TemplateRecord:
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {"arguments": arguments}
    read = JsonMap(arguments if isinstance(arguments, Mapping) else {})
    fields = {"Index": place, "Name": function.get("name", ""), "Arguments": read}
    names = {"Index": "index", "Name": "name", "Arguments": "arguments"}
    return TemplateRecord(
        {"ID": call.get("id") or "", "Function": TemplateRecord(fields, names)},
        {"ID": "id", "Function": "function"},
        ("ID",),
    )


# -- tools -------------------------------------------------------------------------------------------------------------


def tool_records(tools: Sequence[Mapping[str, Any]]) -> JsonList:
    """Definitions of tools. Fields that Ollama knows come in its order, and others, which it drops, behind them."""
    return JsonList(_tool(tool) for tool in tools)


def _tool(tool: Mapping[str, Any]) -> TemplateRecord:
    function = tool.get("function", tool)
    parameters = function.get("parameters") or {}
    schema = _struct(
        parameters,
        {"Type": "type", "Defs": "$defs", "Items": "items", "Required": "required", "Properties": "properties"},
        ("Defs", "Items", "Required"),
        {"Type": "object", "Properties": {}},
    )
    properties = schema["Properties"]
    if isinstance(properties, Mapping):
        schema["Properties"] = JsonMap({name: _property(value) for name, value in properties.items()})
    described = _struct(
        {**function, "parameters": schema},
        {"Name": "name", "Description": "description", "Parameters": "parameters"}, (), {"Name": "", "Description": ""},
    )  # fmt: skip
    return _struct(
        {**tool, "type": tool.get("type", "function"), "function": described},
        {"Type": "type", "Items": "items", "Function": "function"}, ("Items",), {},
    )  # fmt: skip


def _property(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return _struct(
        value,
        {"AnyOf": "anyOf", "Type": "type", "Items": "items", "Description": "description", "Enum": "enum",
         "Properties": "properties", "Required": "required"},
        ("AnyOf", "Type", "Items", "Description", "Enum", "Properties", "Required"),
        {"Type": "", "Description": ""},
    )  # fmt: skip


def _struct(
    given: Mapping[str, Any], names: dict[str, str], optional: tuple[str, ...], defaults: Mapping[str, Any]
) -> TemplateRecord:
    fields = {name: given.get(written, defaults.get(name)) for name, written in names.items()}
    others = {key: key for key in given if key not in names.values()}
    return TemplateRecord({**fields, **{key: given[key] for key in others}}, {**names, **others}, optional)
