"""Python types as formats: pydantic makes the JSON schema, and an instance of what the answer says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ollama_engine.errors import ConfigError, Option

__all__ = ["schema_of"]


def schema_of(given: Any) -> tuple[Mapping[str, Any], Callable[[str], object]]:
    """The schema of a pydantic model, dataclass, TypedDict or any other annotation, and what reads an instance.

    Raises ConfigError where pydantic is not installed, or no schema can be made of the type.
    """
    try:
        from ollama_engine.sample.constraints.pydantic_schema import narrow_schema  # noqa: PLC0415 (not every caller has pydantic)
    except ImportError:
        raise ConfigError(
            Option("format"), f": pydantic makes the schema of {_name(given)}, and is not installed",
            advice=["install it (pip install 'pydantic>=2')", "pass a JSON schema"],
        ) from None  # fmt: skip
    try:
        return narrow_schema(given)
    except TypeError as error:
        raise ConfigError(Option("format"), f": no schema can be made of {_name(given)}: {error}") from None


def _name(given: Any) -> str:
    return getattr(given, "__qualname__", None) or repr(given)
