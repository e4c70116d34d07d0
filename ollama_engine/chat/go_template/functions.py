"""Functions that templates call: Go's own, and those of Ollama."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

from ollama_engine.chat.go_template.values import ABSENT, is_true, kind_of, printed, to_json
from ollama_engine.chat.provenance import Traced, joined
from ollama_engine.errors import ChatError

__all__ = ["FUNCTIONS", "LAZY", "date_functions"]

Call = Callable[..., Any]
_VERB = re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d+))?([a-zA-Z%])")
_MAX_WIDTH = 4096


def _wrong(name: str, what: str) -> ChatError:
    return ChatError(f"the template calls {name} with {what}")


def _comparable(name: str, left: object, right: object) -> None:
    kinds = {kind_of(left), kind_of(right)}
    numbers = {"a number"} == kinds and isinstance(left, float) != isinstance(right, float)
    if kinds & {"nil", "no value"}:
        return
    if kinds & {"a map", "a list", "a struct"}:
        raise _wrong(name, f"{kind_of(left)} and {kind_of(right)}, which cannot be compared")
    if len(kinds) > 1 or numbers:
        raise _wrong(name, f"{kind_of(left)} and {kind_of(right)} of another type")


def _eq(first: object, *others: object) -> bool:
    if not others:
        raise _wrong("eq", "one value only")
    for other in others:
        _comparable("eq", first, other)
    return any(_plain(first) == _plain(other) for other in others)


def _plain(value: object) -> object:
    return None if value is ABSENT else value


def _ne(left: object, right: object) -> bool:
    return not _eq(left, right)


def _ordered(name: str, test: Callable[[Any, Any], bool]) -> Call:
    def compare(left: object, right: object) -> bool:
        _comparable(name, left, right)
        if kind_of(left) not in ("a number", "a text") or kind_of(right) != kind_of(left):
            raise _wrong(name, f"{kind_of(left)} and {kind_of(right)}, which have no order")
        return test(left, right)

    return compare


def _len(value: Any) -> int:
    """`len`: bytes of a text, or elements of a list or map."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, (list, tuple, Mapping)) and kind_of(value) != "a struct":
        return len(value)
    raise _wrong("len", kind_of(value))


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        value = _element(value, key)
    return value


def _element(value: Any, key: Any) -> Any:
    if isinstance(value, Mapping) and kind_of(value) != "a struct":
        if not isinstance(key, str):
            raise _wrong("index", f"{kind_of(key)}, which is no key of a map")
        return value.get(key, ABSENT)
    items = value.encode() if isinstance(value, str) else value
    if not isinstance(items, (list, tuple, bytes)):
        raise _wrong("index", kind_of(value))
    if kind_of(key) != "a number" or not 0 <= key < len(items):
        raise _wrong("index", f"{printed(key)}, which is no place in {len(items)}")
    return items[key]


def _slice(value: Any, *bounds: Any) -> Any:
    """`slice`: of a text by bytes, at bounds between characters; of a list by elements."""
    if not isinstance(value, (str, list, tuple)):
        raise _wrong("slice", kind_of(value))
    size = _len(value)
    begin, end = (*bounds, *(0, size)[len(bounds) :])[:2] if len(bounds) < 2 else bounds[:2]
    if not all(kind_of(bound) == "a number" for bound in (begin, end)) or not 0 <= begin <= end <= size:
        raise _wrong("slice", f"{printed(begin)} and {printed(end)}, which are no places in {size}")
    if isinstance(value, str) and not value.isascii():
        data = value.encode()
        try:
            begin, end = len(data[:begin].decode()), len(data[:end].decode())
        except UnicodeDecodeError:
            raise _wrong("slice", "a place inside of a character") from None
    return value[begin:end]


def _argument(value: object) -> str:
    """A value as print and its like write it: nil and absent values are `<nil>` there."""
    return Traced.whole("<nil>") if value is None or value is ABSENT else printed(value)


def _print(*values: object) -> str:
    """Spaces stand between values of which neither is a text."""
    parts: list[str] = []
    for number, value in enumerate(values):
        if number and not isinstance(value, str) and not isinstance(values[number - 1], str):
            parts.append(" ")
        parts.append(_argument(value))
    return joined(parts)


def _println(*values: object) -> str:
    parts = [part for value in values for part in (" ", _argument(value))]
    return joined([*parts[1:], Traced.whole("\n")])


def _printf(form: str, *values: object) -> str:
    if not isinstance(form, str):
        raise _wrong("printf", f"{kind_of(form)} as its format")
    left = list(values)
    parts: list[str] = []
    at = 0
    for verb in _VERB.finditer(form):
        parts.append(form[at : verb.start()])
        at = verb.end()
        if verb[4] == "%":
            parts.append(form[verb.end() - 1 : verb.end()])
        elif not left:
            parts.append(f"%!{verb[4]}(MISSING)")
        else:
            parts.append(_formatted(verb, left.pop(0)))
    if left:
        raise _wrong("printf", "more values than its format takes")
    return joined([*parts, form[at:]])


def _formatted(verb: re.Match[str], value: object) -> str:
    flags, width, precision, letter = verb.groups()
    if int(width or 0) > _MAX_WIDTH or int(precision or 0) > _MAX_WIDTH:
        raise _wrong("printf", f"{verb[0]}, which is too wide")
    if letter in "vst" and not flags and not width and precision is None:
        return _argument(value)
    if letter == "q":
        return json.dumps(str.__str__(printed(value)), ensure_ascii=False)
    if letter in "vst":
        text = str.__str__(printed(value))[: None if precision is None else int(precision)]
        return text.ljust(int(width or 0)) if "-" in flags else text.rjust(int(width or 0))
    if letter in "dxXofeEgG" and kind_of(value) == "a number":
        return str(verb[0] % value)
    raise _wrong("printf", f"{verb[0]} for {kind_of(value)}")


def _typescript(value: object) -> str:
    """A property's type as TypeScript spells it."""
    if not isinstance(value, Mapping):
        return "any"
    choices = value.get("AnyOf", value.get("anyOf"))
    if choices:
        return " | ".join(map(_typescript, choices))
    types = value.get("Type", value.get("type"))
    names = [types] if isinstance(types, str) else list(types or [])
    known = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "array": "any[]",
             "object": "Record<string, any>", "null": "null"}  # fmt: skip
    return " | ".join(known.get(name, "any") for name in names) or "any"


def date_functions(now: Callable[[], datetime]) -> dict[str, Call]:
    """`currentDate` and `yesterdayDate` by this clock; the format that they may be given does nothing in Ollama."""
    return {
        "currentDate": lambda *_: f"{now():%Y-%m-%d}",
        "yesterdayDate": lambda *_: f"{now() - timedelta(days=1):%Y-%m-%d}",
    }


FUNCTIONS: dict[str, Call] = {
    "eq": _eq,
    "ne": _ne,
    "lt": _ordered("lt", lambda a, b: a < b),
    "le": _ordered("le", lambda a, b: a <= b),
    "gt": _ordered("gt", lambda a, b: a > b),
    "ge": _ordered("ge", lambda a, b: a >= b),
    "not": lambda value: not is_true(value),
    "len": _len,
    "index": _index,
    "slice": _slice,
    "print": _print,
    "println": _println,
    "printf": _printf,
    "html": lambda *values: html.escape(_print(*values)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "urlquery": lambda *values: quote_plus(_print(*values)),
    "json": to_json,
    "toTypeScriptType": _typescript,
}
"""Functions by name; for values that they cannot take, they raise a ChatError."""

LAZY: dict[str, Callable[[Sequence[Callable[[], Any]]], Any]] = {}
"""Functions that compute only as many of their arguments as they need."""


def _first(truth: bool) -> Callable[[Sequence[Callable[[], Any]]], Any]:
    def choose(arguments: Sequence[Callable[[], Any]]) -> Any:
        value: Any = ABSENT
        for argument in arguments:
            value = argument()
            if is_true(value) is truth:
                break
        return value

    return choose


LAZY |= {"and": _first(False), "or": _first(True)}
