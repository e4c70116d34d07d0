"""Python functions as tools: what a model may call is said by the signature, the annotations and the docstring.

def weather(city: str, days: int = 1) -> str:
'''The weather forecast for a city.

Args:
city: its name, such as "Oslo".
days: how many days ahead.
'''
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Mapping, Sequence
from collections.abc import Set as AnySet
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ollama_engine.errors import ChatError, ConfigError
from ollama_engine.sample.constraints.python_types import schema_of

__all__ = ["described"]

PLAIN: Mapping[object, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null", None: "null", list: "array",
    tuple: "array", set: "array", frozenset: "array", dict: "object",
}  # fmt: skip
"""Types whose schema is their name alone."""

SEVERAL = (Sequence, AnySet)
"""Types whose schema is an array."""

_HEADING = re.compile(r"(args|arguments|parameters|params|returns?|raises|yields|examples?|notes?):\s*$", re.IGNORECASE)
_ENTRY = re.compile(r"(\s+)\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_FIELD = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")


def described(where: str, function: Any) -> dict[str, Any]:
    """A function as {"name", "description", "parameters"}; `where` begins its errors.

    Parameters without a default are required. The description is the docstring up to its sections (Google's style) or
    fields (Sphinx's), those of parameters are taken from there, or from `Annotated[..., "text"]`. `*args` and
    `**kwargs` are left out. Types other than Python's own need pydantic. Raises ChatError for what cannot be described,
    such as parameters that have no name for the caller.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ChatError(f"{where}: a function has a name that the model calls it by, got {name!r:.40}",
                        advice=["write it with def"])  # fmt: skip
    where = f"{where} ({name})"
    try:
        signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError) as error:
        raise ChatError(f"{where}: its signature cannot be read: {error}") from None
    text, parts = _read_docstring(inspect.getdoc(function) or "")
    schemas = _Schemas(where)
    properties, required = {}, []
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ChatError(f"{where}: {parameter.name} is taken by position only, and a model calls by names")
        schema = schemas.of(hints.get(parameter.name, Any), parameter.name)
        if parts.get(parameter.name):
            schema = {**schema, "description": parts[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _is_json(parameter.default):
            schema = {**schema, "default": parameter.default}
        properties[parameter.name] = schema
    parameters = {"type": "object", "properties": properties, "required": required}
    if schemas.definitions:
        parameters["$defs"] = schemas.definitions
    return {"name": name, "description": text, "parameters": parameters}


class _Schemas:
    """JSON schemas of annotations; those of classes are shared definitions."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.definitions: dict[str, Any] = {}

    def of(self, hint: Any, name: str) -> dict[str, Any]:
        """The schema of one parameter's annotation."""
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Annotated and all(isinstance(said, str) for said in inner[1:]):
            return {**self.of(inner[0], name), "description": " ".join(inner[1:])}
        if hint is Any:
            return {}
        if origin is None and hint in PLAIN:
            return {"type": PLAIN[hint]}
        if isinstance(hint, type) and issubclass(hint, Enum):
            return {"enum": [member.value for member in hint]}
        return self._of_parts(origin, inner, name) or self._of_class(hint, name)

    def _of_parts(self, origin: Any, inner: tuple[Any, ...], name: str) -> dict[str, Any] | None:
        """The schema of a type that is made of others; None where it is none of Python's own."""
        if origin is Literal:
            return {"enum": list(inner)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(member, name) for member in inner]}
        if not isinstance(origin, type):
            return None
        if issubclass(origin, Mapping) and inner[0] is str:
            return {"type": "object", "additionalProperties": self.of(inner[1], name)}
        if origin is tuple and inner[-1] is not Ellipsis:
            members = [self.of(member, name) for member in inner]
            return {"type": "array", "prefixItems": members, "minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", "items": self.of(inner[0], name)} if issubclass(origin, SEVERAL) else None

    def _of_class(self, hint: Any, name: str) -> dict[str, Any]:
        """The schema that pydantic makes. Its references begin at the root of the parameters."""
        try:
            schema = dict(schema_of(hint)[0])
        except ConfigError as error:
            why = str(error).removeprefix("format: ")
            raise ChatError(f"{self._where}: the parameter {name}: {why}") from None
        for key, value in schema.pop("$defs", {}).items():
            if self.definitions.setdefault(key, value) != value:
                raise ChatError(f"{self._where}: two classes are called {key}; give one another name")
        return schema


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the function, and of its parameters by name."""
    described: list[str] = []
    parts: dict[str, list[str]] = {}
    section, depth, current = "", 0, None
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            section, current = heading[1].lower(), None
        elif field := _FIELD.match(line):
            section, depth, current = "fields", 0, parts.setdefault(field[1], [field[2]])
        elif line.startswith(":"):
            section, current = "fields", None
        elif section.startswith(("arg", "param")) and (entry := _ENTRY.match(line)):
            if current is None or len(entry[1]) <= depth:
                depth, current = len(entry[1]), parts.setdefault(entry[2], [entry[3]])
            else:
                current.append(line.strip())
        elif not line[:1].isspace() and line and section != "fields":
            section, current = "", None
            described.append(line)
        elif current is not None:
            current.append(line.strip())
        elif not section:
            described.append(line)
    return "\n".join(described).strip(), {name: " ".join(lines).strip() for name, lines in parts.items()}


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
