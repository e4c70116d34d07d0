"""Errors as OpenAI's API writes them."""

from __future__ import annotations

from typing import Any

from fastapi.exceptions import RequestValidationError

from ollama_engine.errors import ContextOverflowError, EngineError, ModelNotFoundError, Option
from ollama_engine.server.errors import ApiError, message_of, place_of

__all__ = ["error_body", "param_of"]

FIELDS = {
    "format": "response_format",
    "think": "reasoning_effort",
    "prompt_logprobs": "logprobs",
    **{
        name: name
        for name in (
            "model", "messages", "temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "stop", "max_tokens",
            "logit_bias", "logprobs", "presence_penalty", "frequency_penalty", "repeat_penalty", "repeat_last_n",
            "tools", "tool_choice", "parallel_tool_calls", "n", "best_of", "dimensions", "timeout",
            "prompt_name", "task",
        )
    },
}  # fmt: skip
"""Options of the engine that requests have, and what they are called there."""

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def error_body(error: Exception, status: int) -> dict[str, Any]:
    """The body of a response to a request that failed."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": _message(error), "type": kind, "param": param_of(error), "code": _code(error, status)}}


def param_of(error: Exception) -> str | None:
    """The field of the request that an error is about."""
    if isinstance(error, ApiError):
        return error.param
    if isinstance(error, ModelNotFoundError):
        return "model"
    if isinstance(error, RequestValidationError):
        return place_of(error.errors()[0]) or None
    option = error.option if isinstance(error, EngineError) else None
    return None if option is None else FIELDS.get(option)


def _message(error: Exception) -> str:
    return error.message(_written) if isinstance(error, EngineError) else message_of(error)


def _written(option: Option) -> str | None:
    name = FIELDS.get(option.name)
    plain = name is None or str(option.value) in ("None", "True", "False")  # a switch is asked for in other words here
    return name if plain else f'{name}="{option.value}"'


def _code(error: Exception, status: int) -> str | None:
    if isinstance(error, ApiError) and error.code is not None:
        return error.code
    if isinstance(error, ModelNotFoundError):
        return "model_not_found"
    if isinstance(error, ContextOverflowError):
        return "context_length_exceeded"
    return CODES.get(status)
