"""Routes of the page: its files, and what its live view shows."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.responses import PlainTextResponse, Response

from ollama_engine.errors import ClosedError, ModelProcessError
from ollama_engine.server.page.live import live_view
from ollama_engine.server.service import Service, service_of

__all__ = ["router"]

STATIC = Path(__file__).parent / "static"
TYPES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "chat.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Nothing from outside, nothing inline, no frame around it."""

router = APIRouter(include_in_schema=False)


@router.head("/", include_in_schema=False)
@router.get("/")
async def root(request: Request) -> Response:
    """The page for browsers; for programs, what Ollama says."""
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse("Ollama is running")
    return _file("index.html")


@router.get("/page/live")
async def live(service: Annotated[Service, Depends(service_of)], after: float = 0.0) -> dict[str, Any]:
    """The state of every loaded model, and its steps that began `after` these seconds of the engine's clock."""
    models = []
    for loaded in service.manager.loaded():
        with suppress(ClosedError, ModelProcessError):  # it was unloaded meanwhile, or has crashed
            models.append(await live_view(loaded, after))
    return {"models": models}


@router.get("/page/{name}")
async def file(name: str) -> Response:
    """A file of the page."""
    if name not in TYPES:
        raise HTTPException(404, f"the page has no file {name!r}")
    return _file(name)


def _file(name: str) -> Response:
    return Response((STATIC / name).read_bytes(), media_type=TYPES[name], headers=HEADERS)
