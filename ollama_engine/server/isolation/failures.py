"""Errors of a model's process, as JSON and back: the same class, message, advice and attributes."""

from __future__ import annotations

from typing import Any

from ollama_engine import errors
from ollama_engine.errors import EngineError
from ollama_engine.server.isolation.codec import decode, encode

__all__ = ["error_of", "sent_error"]


def sent_error(error: BaseException) -> dict[str, Any]:
    """An error as JSON. What the engine does not raise on purpose arrives as an EngineError with its text."""
    if isinstance(error, OSError) and not isinstance(error, EngineError):
        return {"type": "OSError", "parts": [error.errno, error.strerror, error.filename]}
    if not isinstance(error, EngineError):
        return {"type": "EngineError", "parts": [f"{type(error).__name__}: {error}"]}
    name = next(cls.__name__ for cls in type(error).__mro__ if getattr(errors, cls.__name__, None) is cls)
    facts = {key: value for key, value in vars(error).items() if key not in ("parts", "advice")}
    return {"type": name, "parts": encode(list(error.parts)), "advice": encode(list(error.advice)),
            "facts": encode(facts)}  # fmt: skip


def error_of(sent: Any) -> Exception:
    """The error that was sent. Raises ValueError for what is none."""
    cls = getattr(errors, str(sent.get("type")), None) if isinstance(sent, dict) else None
    if isinstance(sent, dict) and sent.get("type") == "OSError":
        return OSError(*sent["parts"])
    if not isinstance(cls, type) or not issubclass(cls, EngineError):
        raise ValueError(f"{sent!r:.80} is no error of this protocol")
    error = cls(*decode(sent["parts"]), advice=decode(sent.get("advice", [])))
    error.__dict__ |= decode(sent.get("facts", {}))
    error.args = (error.message(),)
    return error
