"""Fields that clients send and that do nothing here: they are taken, and the request's line in the log names them."""

from __future__ import annotations

from fastapi import Request
from pydantic import BaseModel

from ollama_engine.server.request_log import note, note_names

__all__ = ["note_body", "unused_fields"]

WITHOUT_EFFECT = ("user", "metadata")
"""Declared, for their types alone."""
ALWAYS_TRUE = ("strict", "description")
"""Fields of a schema with a name: every schema is enforced, and a description is for readers."""


def unused_fields(body: BaseModel) -> list[str]:
    """The names of those that a body has: "store", "reasoning.summary". Messages and tools are not looked into."""
    fields = type(body).model_fields
    names = [name for name in WITHOUT_EFFECT if name in fields and getattr(body, name) is not None]
    names += [name for name, value in (body.model_extra or {}).items() if value is not None]
    for name in fields:
        value = getattr(body, name)
        if isinstance(value, BaseModel):
            names += [f"{name}.{inner}" for inner in unused_fields(value) if inner not in ALWAYS_TRUE]
    return names


def note_body(request: Request, body: BaseModel, model: str) -> None:
    """Have the line of a request say which model it asks and what of it does nothing."""
    note(request, model=model)
    note_names(request, ignored=unused_fields(body))
