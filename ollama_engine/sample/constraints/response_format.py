"""OpenAI's `response_format`, which other servers took over: what is around a JSON schema is taken off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.errors import ConfigError, Option

__all__ = ["ANY_OBJECT", "unwrapped"]

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}

AROUND = frozenset({"type", "name", "description", "strict", "schema"})
"""Keys allowed beside a schema. An answer always follows all of its schema, so `strict` changes nothing."""


def unwrapped(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON schema in {"type": "json_schema", "json_schema": {"schema": ...}}; schemas as they are.

    The Responses API writes {"type": "json_schema", "schema": ...}; {"type": "json_object"} is any object, or
    llama.cpp's {"type": "json_object", "schema": ...}. No schema has these types. Raises ConfigError for other forms.
    https://platform.openai.com/docs/api-reference/chat/create#chat-create-response_format
    """
    kind = given.get("type")
    if kind == "text":
        raise ConfigError(Option("format"), ' of type "text" asks for nothing; leave it out')
    if kind not in ("json_object", "json_schema"):
        return given
    inside = given.get("json_schema") if "json_schema" in given else given
    known = {"type", "json_schema"} if inside is not given else AROUND
    if not isinstance(inside, Mapping) or set(given) - known or set(inside) - AROUND:
        raise _malformed(given)
    schema = inside.get("schema", ANY_OBJECT if kind == "json_object" and inside is given else None)
    if not isinstance(schema, Mapping):
        raise _malformed(given)
    return schema


def _malformed(given: Mapping[str, Any]) -> ConfigError:
    return ConfigError(
        Option("format"),
        ' as a response_format is {"type": "json_object"}, or {"type": "json_schema", "json_schema": {"name": ..., '
        f'"schema": {{...}}}}}}; got {given!r:.80}',
    )
