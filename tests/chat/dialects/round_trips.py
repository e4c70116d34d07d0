"""Answers as the templates of published models write them: what a parser reads must be what the template was given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ollama_engine.chat.dialects import Dialect, ToolDefinition
from ollama_engine.chat.template import ChatTemplate
from ollama_engine.errors import ChatError

ARGUMENTS = [
    {
        "city": 'Par"is, <b>é</b>',
        "days": 3,
        "units": ["C", "mm"],
        "exact": True,
        "place": {"lat": 48.85, "lon": -2.5, "names": []},
        "note": "two\n\nlines {and} [more]",
    },
    {"zone": "Europe/Paris"},
]
PROPERTIES: list[dict[str, Any]] = [
    {
        "city": {"type": "string", "description": "where"},
        "days": {"type": "integer", "description": "how many"},
        "units": {"type": "array", "items": {"type": "string"}, "description": "of what"},
        "exact": {"type": "boolean", "description": "whether"},
        "place": {
            "type": "object",
            "properties": {
                "lat": {"type": "number"},
                "lon": {"type": "number"},
                "names": {"type": "array", "items": {"type": "string"}},
            },
            "description": "where exactly",
        },
        "note": {"type": "string", "description": "why"},
    },
    {"zone": {"type": "string", "description": "which"}},
]
NAMES = ["get_weather", "time_in"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells {name}.",
            "parameters": {"type": "object", "properties": properties, "required": []},
        },
    }
    for name, properties in zip(NAMES, PROPERTIES, strict=True)
]
DEFINITIONS = tuple(ToolDefinition(tool["function"]["name"], tool["function"]["parameters"]) for tool in TOOLS)  # type: ignore[index,arg-type]
CONTENT, REASONING = "Let me look it up.", "They want\nthe weather."
END = "<END-OF-SEQUENCE>"


@dataclass(frozen=True)
class Told:
    """The assistant's turn, as the template was given it."""

    content: str
    reasoning: str
    calls: list[tuple[str, dict[str, Any]]]


def messages(told: Told, as_text: bool) -> list[dict[str, Any]]:
    calls = [
        {
            "id": f"abcdefgh{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments) if as_text else arguments},
        }
        for number, (name, arguments) in enumerate(told.calls)
    ]
    answer: dict[str, Any] = {"role": "assistant", "content": told.content or None}
    answer |= {"tool_calls": calls} if calls else {}
    answer |= {"reasoning_content": told.reasoning} if told.reasoning else {}
    return [{"role": "user", "content": "What is the weather?"}, answer]


def cases() -> Iterator[Told]:
    """From what few templates take to what all do."""
    calls = list(zip(NAMES, ARGUMENTS, strict=True))
    for count in (2, 1, 0):
        for content, reasoning in ((CONTENT, REASONING), ("", REASONING), (CONTENT, ""), ("", "")):
            if count or content:
                yield Told(content, reasoning, calls[:count])


def answers(source: str, dialect: Dialect) -> list[tuple[Told, str, bool]]:
    """For each case the answer that a template wrote, and whether its prompt opened the reasoning.

    Templates that write no arguments that are objects get them as text.
    """
    template = ChatTemplate(source, {"bos_token": "<BOS>", "eos_token": END}, lambda: datetime(2026, 1, 2))
    found = [answer for told in cases() if (answer := rendered(template, dialect, told, False))]
    if not any(told.calls for told, _, _ in found):
        found += [answer for told in cases() if (answer := rendered(template, dialect, told, True))]
    return found


def rendered(template: ChatTemplate, dialect: Dialect, told: Told, as_text: bool) -> tuple[Told, str, bool] | None:
    thinks = bool(told.reasoning)
    variables = {"enable_thinking": thinks, "thinking": thinks, "functions": "[]", "datetime": "now"}
    conversation = messages(told, as_text)
    try:
        prompt = template.render(conversation[:1], tools=TOOLS, variables=variables, add_generation_prompt=True)
        whole = template.render(conversation, tools=TOOLS, variables=variables)
    except ChatError:
        return None
    begin = common_length(prompt, whole)
    answer = re.split("|".join(map(re.escape, (END, *dialect.stops()))), str(whole[begin:]))[0]
    opened = dialect.reasoning_open(prompt[:begin])
    if thinks and answer.startswith(told.reasoning):  # in a conversation some leave out what their prompt opens with
        opened = opened or dialect.reasoning_open(prompt)
    return written(told, answer), answer, opened


def written(told: Told, answer: str) -> Told:
    """The part of it that the template wrote: many leave out content beside calls, or reasoning, and some all calls."""
    return Told(
        told.content if told.content in answer else "",
        told.reasoning if told.reasoning in answer else "",
        [(name, arguments) for name, arguments in told.calls if name in answer],
    )


def common_length(prompt: str, whole: str) -> int:
    """How far the prompt of an answer and the conversation with it agree; not to the middle of a tag."""
    length = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(prompt))
    tag = prompt.rfind("<", 0, length)
    return tag if length < len(prompt) and tag > prompt.rfind(">", 0, length) else length
