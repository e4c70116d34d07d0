"""What errors become for clients: a status, and a body in the style of the API that was asked."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import JSONResponse, Response

from ollama_engine.errors import EngineError
from ollama_engine.server.streaming import ClientGoneError

__all__ = ["ApiError", "error_response", "status_of"]


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
    if isinstance(error, ClientGoneError):
        return 499
    return error.http_status if isinstance(error, EngineError) else 500


async def error_response(request: Request, error: Exception) -> Response:
    """The response to a request that failed before anything was sent."""
    return JSONResponse({"error": str(error)}, status_of(error))
