"""What errors become for clients: a status, and a body in the style of the API that was asked."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ollama_engine.errors import EngineError
from ollama_engine.server.streaming import ClientGoneError

__all__ = ["ApiError", "error_response", "message_of", "status_of"]


class ApiError(Exception):
    """A request that is refused: a status, a message, and for OpenAI's clients the parameter that is wrong."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


def status_of(error: Exception) -> int:
    """The HTTP status of an error."""
    if isinstance(error, ApiError):
        return error.status
    if isinstance(error, RequestValidationError):
        return 400
    if isinstance(error, HTTPException):
        return error.status_code
    if isinstance(error, ClientGoneError):
        return 499
    return error.http_status if isinstance(error, EngineError) else 500


def message_of(error: Exception) -> str:
    """What a client is told."""
    if isinstance(error, RequestValidationError):
        first: dict[str, Any] = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return f"{place}: {first['msg']}" if place else str(first["msg"])
    return str(error.detail) if isinstance(error, HTTPException) else str(error)


async def error_response(request: Request, error: Exception) -> Response:
    """The response to a request that failed before anything was sent."""
    status = status_of(error)
    for prefix, form in request.app.state.error_forms:
        if request.url.path.startswith(prefix):
            return JSONResponse(form(error, status), status)
    return JSONResponse({"error": message_of(error)}, status)
