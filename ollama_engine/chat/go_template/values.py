"""Values of a template, what they print, and their JSON, as Go's fmt and encoding/json write them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ollama_engine.chat.provenance import Traced
from ollama_engine.errors import ChatError

__all__ = ["ABSENT", "JsonList", "JsonMap", "TemplateRecord", "is_true", "kind_of", "printed", "to_json"]


class _Absent:
    """The value of a key that a map lacks."""

    def __repr__(self) -> str:
        return "<no value>"


ABSENT = _Absent()


class TemplateRecord(dict[str, Any]):
    """A struct: fields by their Go names. It is true, also without fields, and its printed form is its JSON.

    fields: Go name -> value.
    json_names: Go name -> its name in JSON; fields without one are left out there.
    optional: Go names of fields that are left out of JSON where they are empty.
    """

    __slots__ = ("_names", "_optional")

    def __init__(
        self, fields: Mapping[str, Any], json_names: Mapping[str, str] | None = None, optional: Sequence[str] = ()
    ) -> None:
        super().__init__(fields)
        self._names = dict(json_names or {})
        self._optional = frozenset(optional)

    def plain(self) -> dict[str, Any]:
        """The fields by their JSON names; optional ones that are empty are left out."""
        return {
            written: self[name]
            for name, written in self._names.items()
            if not (name in self._optional and not is_true(self[name]))
        }


def is_true(value: object) -> bool:
    """Whether `if` takes it for true: no empty value is."""
    if isinstance(value, TemplateRecord):
        return True
    return value is not ABSENT and bool(value)


def kind_of(value: object) -> str:
    """A value's kind, as error messages name it."""
    if isinstance(value, TemplateRecord):
        return "a struct"
    names = {bool: "a bool", int: "a number", float: "a number", str: "a text", type(None): "nil"}
    for kind, name in names.items():
        if isinstance(value, kind):
            return name
    return "a map" if isinstance(value, Mapping) else "a list" if isinstance(value, (list, tuple)) else "no value"


def printed(value: object) -> str:
    """The text of a value. A text keeps the marks of who wrote it."""
    if isinstance(value, str):
        return value
    if value is None or value is ABSENT:
        return Traced.whole("<no value>")
    if isinstance(value, bool):
        return Traced.whole("true" if value else "false")
    if isinstance(value, (int, float)):
        return _float(value) if isinstance(value, float) else str(value)
    return to_json(value) if isinstance(value, (Printable, TemplateRecord)) else _shown(value)


class Printable:
    """Base of lists and maps that print as JSON, as Ollama's own types do."""


class JsonList(list[Any], Printable):
    """A list that prints as JSON: the tools."""


class JsonMap(dict[str, Any], Printable):
    """A map that prints as JSON: a call's arguments, a function's properties."""


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{key}:{_within(value[key])}" for key in sorted(value)) + "]"
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(_within(item) for item in value) + "]"
    raise ChatError(f"the template writes {kind_of(value)}")


def _within(value: object) -> str:
    """An element as it prints inside of a list or map: nil is `<nil>` there."""
    return "<nil>" if value is None else str.__str__(printed(value))


def _float(value: float) -> str:
    """`%v`: the shortest digits, with an exponent below -4 and from 6 on."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return _digits(value, -5 < _exponent(value) < 6)


def _exponent(value: float) -> int:
    return 0 if value == 0 else int(f"{value:e}".rpartition("e")[2])


def _digits(value: float, plain: bool) -> str:
    digits = repr(value).partition("e")[0]
    if plain:
        text = f"{Decimal(repr(value)):f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    sign, number = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    power = _exponent(value)
    figures = number.replace(".", "").strip("0") or "0"
    tail = f".{figures[1:]}" if len(figures) > 1 else ""
    return f"{sign}{figures[0]}{tail}e{'-' if power < 0 else '+'}{abs(power):02d}"


# -- JSON --------------------------------------------------------------------------------------------------------------

_HTML = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def to_json(value: object) -> str:
    """JSON as Go's `json.Marshal` writes it: no spaces, keys of maps in order, characters of HTML escaped."""
    return _json(value).translate(_HTML)


def _json(value: object) -> str:
    if isinstance(value, TemplateRecord):
        return "{" + ",".join(f"{json.dumps(name)}:{_json(item)}" for name, item in value.plain().items()) + "}"
    if isinstance(value, Mapping):
        keys = sorted(value, key=str)
        pairs = (f"{json.dumps(str(key), ensure_ascii=False)}:{_json(value[key])}" for key in keys)
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_json, value)) + "]"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ChatError(f"JSON cannot hold {value}")
        return re.sub(r"e-0(\d)$", r"e-\1", _digits(value, value == 0 or 1e-6 <= abs(value) < 1e21))
    if value is None or value is ABSENT:
        return "null"
    if isinstance(value, (str, bool, int)):
        return json.dumps(value, ensure_ascii=False)
    raise ChatError(f"JSON cannot hold {kind_of(value)}")
