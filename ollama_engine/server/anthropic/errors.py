"""Errors as Anthropic's API writes them."""

from __future__ import annotations

from typing import Any

from ollama_engine.errors import EngineError, Option
from ollama_engine.server.errors import message_of

__all__ = ["error_body"]

TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip

FIELDS = {
    "stop": "stop_sequences",
    "think": "thinking",
    "reasoning_budget": "thinking.budget_tokens",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    **{name: name for name in ("model", "messages", "max_tokens", "temperature", "top_p", "top_k", "tools",
                               "tool_choice")},
}  # fmt: skip
"""Options of the engine that requests have, and what they are called there."""


def error_body(error: Exception, status: int) -> dict[str, Any]:
    """The body of a response to a request that failed, and the data of an "error" event."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    message = error.message(_written) if isinstance(error, EngineError) else message_of(error)
    return {"type": "error", "error": {"type": kind, "message": message}}


def _written(option: Option) -> str | None:
    name = FIELDS.get(option.name)
    plain = name is None or str(option.value) in ("None", "True", "False")  # a switch is asked for in other words here
    return name if plain else f'{name}="{option.value}"'
