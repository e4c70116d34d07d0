"""Conversations of every kind that templates meet: (messages, options of `ChatTemplate.render`) by name."""

from __future__ import annotations

from datetime import datetime
from typing import Any

NOW = datetime(2026, 1, 2, 3, 4, 5)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather of a <city> & "more", é\nin two lines',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where", "enum": ["Paris", "Rome"]},
                "days": {"type": ["integer", "null"], "default": 3, "minimum": 1},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}  # fmt: skip  # noqa: E501
TOOLS = [WEATHER, CLOCK]


def user(content: Any = "Hello there, <b>you</b> & 'I' \"too\"\n") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = "Hi, how are you?", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def call(name: str = "get_weather", arguments: Any = None, id_: str = "abcdef123") -> dict[str, Any]:
    given = {"city": "Paris", "days": 3, "tags": ["é", "<|im_end|>"]} if arguments is None else arguments
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": given}}


def result(content: Any = '{"temp": 20}', id_: str = "abcdef123", **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "name": "get_weather", "content": content, **fields}


SYSTEM = {"role": "system", "content": "You are kind."}
TEXT_CALL = call(arguments='{"city": "Paris"}')
BOTH = [call(), call("clock", {}, "abcdef124")]
RESULTS = [result(), result("noon", "abcdef124", name="clock")]
THOUGHT = assistant("So it is.", reasoning_content="Let me think.\nYes.")
ODD = "  \n{{ messages }} {% raw %} {# no #} </think> <think> <|im_end|><s>[INST] ]~b] é\u00a0\u202e\U0001f600\t\\n \n"
PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
DOCUMENTS = [{"title": "First", "text": "It <rains>."}, {"title": "Second", "text": "It\nshines."}]

Conversation = tuple[list[dict[str, Any]], dict[str, Any]]

CONVERSATIONS: dict[str, Conversation] = {
    "user": ([user()], {}),
    "system": ([SYSTEM, user()], {}),
    "system only": ([SYSTEM], {}),
    "developer": ([{"role": "developer", "content": "Be brief."}, user()], {}),
    "turns": ([SYSTEM, user(), assistant(), user("And you?")], {}),
    "turns, no prompt": ([SYSTEM, user(), assistant()], {"add_generation_prompt": False}),
    "two users": ([user(), user("Hello?")], {}),
    "odd": ([{"role": "system", "content": ODD}, user(ODD), assistant(ODD), user(ODD)], {}),
    "empty": ([SYSTEM, user("")], {}),
    "parts": ([SYSTEM, user(PARTS), assistant(PARTS), user(PARTS)], {}),
    "none": ([user(), assistant(None, tool_calls=[call()]), result(), assistant(None), user()], {"tools": TOOLS}),
    "tools": ([user()], {"tools": TOOLS}),
    "tools, system": ([SYSTEM, user()], {"tools": TOOLS}),
    "call": ([SYSTEM, user(), assistant("", tool_calls=[call()]), result()], {"tools": TOOLS}),
    "call as text": ([user(), assistant("", tool_calls=[TEXT_CALL]), result(), assistant(), user()], {"tools": TOOLS}),
    "call, no tools": ([user(), assistant("", tool_calls=[call()]), result(), assistant(), user()], {}),
    "calls": ([user(), assistant("I look.", tool_calls=BOTH), *RESULTS, assistant(), user()], {"tools": TOOLS}),
    "call, open": ([user(), assistant("", tool_calls=[call()])], {"tools": TOOLS, "add_generation_prompt": False}),
    "odd call": ([user(), assistant(ODD, tool_calls=[call(arguments={ODD: [ODD, {"a": None}, 1.5, True]})]),
                  result(ODD), assistant(), user()], {"tools": TOOLS}),
    "result as object": ([user(), assistant("", tool_calls=[call()]), result({"temp": 20})], {"tools": TOOLS}),
    "reasoning": ([user(), THOUGHT, user("Why?")], {}),
    "reasoning, call": ([user(), assistant("", reasoning_content="Hm.", tool_calls=[call()]), result()],
                        {"tools": TOOLS}),
    "thinking": ([user(), assistant("x", thinking="Hm."), user()], {}),
    "reasoning in content": ([user(), assistant("<think>\nHm.\n</think>\n\nYes."), user("Why?")], {}),
    "think": ([SYSTEM, user()], {"variables": {"enable_thinking": True, "thinking": True}}),
    "do not think": ([SYSTEM, user()], {"variables": {"enable_thinking": False, "thinking": False}}),
    "think much": ([SYSTEM, user()], {"variables": {"reasoning_effort": "high"}}),
    "documents": ([user()], {"documents": DOCUMENTS}),
    "documents, tools": ([SYSTEM, user()], {"documents": DOCUMENTS, "tools": TOOLS}),
    "continue": ([user(), assistant("Once upon")], {"continue_final_message": True, "add_generation_prompt": False}),
    "continue, stripped": ([SYSTEM, user(), assistant("Once upon a \n")],
                           {"continue_final_message": True, "add_generation_prompt": False}),
    "continue parts": ([user(), assistant(PARTS)], {"continue_final_message": True, "add_generation_prompt": False}),
    "continue reasoning": ([user(), THOUGHT],
                           {"continue_final_message": "reasoning_content", "add_generation_prompt": False}),
    "names": ([user() | {"name": "ann"}, assistant(), user() | {"name": "bob"}], {}),
}  # fmt: skip
"""`add_generation_prompt` is True where it is not given."""
