"""Chat templates, and the messages that they render: a template's source, a zero byte, and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from ollama_engine.chat.template import ChatTemplate, text_segments
from ollama_engine.errors import ChatError

WORDS = (
    b"{{", b"}}", b"{%", b"%}", b"{#", b"#}", b"-%}", b" for ", b" in ", b"endfor", b" if ", b"elif", b"else", b"endif",
    b"set ", b"endset", b"macro ", b"endmacro", b"namespace(", b"messages", b"message", b"['role']", b".content",
    b"loop.index0", b"loop.last", b"loop.previtem", b"| trim", b"| tojson", b"| join", b"| length", b"| default(",
    b"| selectattr(", b"| map(", b"is defined", b"is string", b"is mapping", b"raise_exception(", b"strftime_now(",
    b"add_generation_prompt", b"bos_token", b"tools", b"not ", b" and ", b"~", b"[::-1]", b".split(", b".items()",
    b"generation", b"endgeneration", b"break", b"continue", b"range(", b"filter ", b"call ", b"\0",
    b'{"role": "user", "content": "a"}', b'"tool_calls"', b'"tools"', b"null", b"true", b"1e400",
)  # fmt: skip
MESSAGES = [
    {"role": "system", "content": "be <b>"}, {"role": "user", "content": "hi <|end|>"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, None]}}}]},
    {"role": "tool", "content": "3", "tool_call_id": "1"},
    {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image"}]},
]  # fmt: skip
SOURCES = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}<|end|>\n{% endfor %}",
    "{{ bos_token }}{%- set ns = namespace(n=0) -%}{% for m in messages if m.content is string %}"
    "{% set ns.n = ns.n + 1 %}[{{ ns.n ~ m.content.split('<')[-1] }}]{% else %}none{% endfor %}",
    "{% macro f(x) %}({{ x | tojson }}){% endmacro %}{% for m in messages %}{% for c in m.tool_calls %}"
    "{{ f(c.function.arguments) }}{% endfor %}{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}",
    "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}{{ strftime_now('%Y') }}",
    "{{ tools | tojson(indent=2) }}{% generation %}{{ messages[-1].content | string | upper }}{% endgeneration %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('|') }}",
)
LONGEST = 2_000
"""Characters of a source: templates that loop within loops may be slow, as the docs say."""


def seeds() -> Iterable[bytes]:
    for i, source in enumerate(SOURCES):
        found = {"messages": MESSAGES[: i + 1], "tools": [{"type": "function", "function": {"name": "f"}}]}
        yield source.encode() + b"\0" + json.dumps(found if i else MESSAGES).encode()


@contextmanager
def opened(folder: Path) -> Iterator[Callable[[bytes], bool]]:
    def run(data: bytes) -> bool:
        source, _, rest = data.decode("utf-8", "replace").partition("\0")
        if len(source) > LONGEST or source.count("for") > 4 or "range" in source:
            return False
        given = _given(rest)
        messages = given.pop("messages")
        try:
            template = ChatTemplate(source, {"bos_token": "<s>"}, lambda: datetime(2026, 1, 1))
            text = template.render(messages, **given)  # type: ignore[arg-type]
        except ChatError:
            return False
        segments = text_segments(text)
        assert "".join(segment.text for segment in segments) == str.__str__(text)
        template.reads("tools")
        return bool(text)

    yield run


def _given(rest: str) -> dict[str, object]:
    """What a caller passes: fields are checked elsewhere, so only their shapes are right."""
    try:
        found = json.loads(rest)
    except (ValueError, RecursionError):
        found = None
    fields = found if isinstance(found, dict) else {"messages": found}
    messages = fields.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        messages = MESSAGES
    tools = fields.get("tools")
    return {
        "messages": messages,
        "tools": tools if isinstance(tools, list) else None,
        "add_generation_prompt": bool(fields.get("add_generation_prompt", True)),
    }
