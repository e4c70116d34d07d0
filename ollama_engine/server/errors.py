"""Errors as clients get them: a status, and a body in the style of the API that was asked."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ollama_engine.errors import (
    ClosedError,
    ContextOverflowError,
    EngineBusyError,
    EngineError,
    ModelFormatError,
    RegistryError,
)
from ollama_engine.server.json_response import json_response

log = logging.getLogger(__name__)

__all__ = ["BUSY", "CLIENT_GONE", "TOO_LONG", "ApiError", "ClientGoneError", "error_response", "log_failure",
           "message_of", "place_of", "send_error", "status_of"]  # fmt: skip

CLIENT_GONE = 499
BUSY = "server busy, please try again.  maximum pending requests exceeded"
TOO_LONG = "the input length exceeds the context length"
"""Ollama's words, which clients look for."""

NO_ROUTE = {404: "there is no such route here", 405: "this route takes other methods"}
"""What the framework raises where nothing answers; errors of routes are of other classes."""

TRIED = re.compile(r"str|bool|int|float|(?:list|dict|literal|function-[a-z]+)\[.*|[A-Z]\w*")
"""What pydantic calls a type among several: fields of bodies have other names."""
NO_OBJECT = ("model_attributes_type", "model_type", "dict_type")
SHOULD_BE = "Input should be "
FIELDS = " or object to extract fields from"
"""What pydantic says of Python's objects, which no body holds."""


class ApiError(Exception):
    """A request that is refused: a status, a message, and for OpenAI's clients the parameter that is wrong."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class ClientGoneError(Exception):
    """The client has closed its connection and reads no answer."""


def status_of(error: Exception) -> int:
    """The HTTP status of an error."""
    if isinstance(error, ApiError):
        return error.status
    if isinstance(error, RequestValidationError):
        return 400
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, ClientGoneError):
        return CLIENT_GONE
    return error.http_status if isinstance(error, EngineError) else 500


def message_of(error: Exception) -> str:
    """The message for a client. The text of an unexpected error stays in the log: it may name files."""
    if isinstance(error, RequestValidationError):
        return wrong_body(error)
    if isinstance(error, HTTPException):
        return str(error.detail)
    if isinstance(error, ClientGoneError):
        return "request canceled"
    if isinstance(error, EngineBusyError):
        return BUSY
    if isinstance(error, ContextOverflowError):
        return f"{TOO_LONG}: {error}"
    return str(error) if isinstance(error, (ApiError, EngineError)) else "internal error; the server's log says more"


def place_of(mistake: Mapping[str, Any]) -> str:
    """Where a mistake in a body is, such as "messages.0.content", without pydantic's names of the types it tried."""
    parts = (str(part) for part in mistake["loc"] if part != "body")
    return ".".join(part for part in parts if not TRIED.fullmatch(part))


def wrong_body(error: RequestValidationError) -> str:
    """The first mistake in a body, behind its place: "messages.0.content: Input should be a valid string".

    Where a field takes several types, what each of them should be.
    """
    mistakes = error.errors()
    first: dict[str, Any] = mistakes[0]
    place = place_of(first)
    if first["type"] == "missing" and not place:
        return "missing request body"
    if first["type"] == "json_invalid":
        return f"invalid JSON: {first.get('ctx', {}).get('error', first['msg'])} at character {place}"
    if not place:
        return "the body should be a JSON object" if first["type"] in NO_OBJECT else str(first["msg"])
    told = dict.fromkeys(str(each["msg"]).removesuffix(FIELDS) for each in mistakes if place_of(each) == place)
    return f"{place}: {' or '.join(told).replace(f' or {SHOULD_BE}', ' or ')}"


def log_failure(what: str, error: Exception) -> None:
    """Have the log say what has failed, and why: clients see no text of unexpected errors.

    Where the message says all, it takes one line: a registry that cannot be reached, a file that is no model, an engine
    that was closed (or closed itself: its own log has the fault).
    """
    if isinstance(error, (RegistryError, ModelFormatError, ClosedError)):
        log.warning("%s: %s", what, error)
    else:
        level = logging.ERROR if status_of(error) == 500 else logging.DEBUG
        log.log(level, "%s", what, exc_info=error)


async def error_response(request: Request, error: Exception) -> Response:
    """The response to a request that failed before anything was sent, in the form that its API has for errors."""
    status = status_of(error)
    log_failure(f"{request.method} {request.url.path} failed", error)
    headers = getattr(error, "headers", None)
    if isinstance(error, HTTPException) and status in NO_ROUTE:
        where = f"{request.method} {request.url.path:.100}"
        error = ApiError(status, f"{where}: {NO_ROUTE[status]}; GET /openapi.json lists the routes of this server")
    for prefix, form in request.app.state.error_forms:
        if request.url.path.startswith(prefix):
            return json_response(form(error, status), status, headers)
    return json_response({"error": message_of(error)}, status, headers)


async def send_error(error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request by `error_response`, for middleware.

    What middleware raises instead goes past the headers that let pages of allowed origins read the answer.
    """
    response = await error_response(Request(scope), error)
    await response(scope, receive, send)
