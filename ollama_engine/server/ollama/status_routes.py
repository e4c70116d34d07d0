"""The server's state: /api/version, /api/status, /api/ps."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

import ollama_engine
from ollama_engine.server.durations import FOREVER, timestamp
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.json_response import json_response
from ollama_engine.server.managing import LoadedModel
from ollama_engine.server.service import Service, service_of
from ollama_engine.store.showing import details, short_facts

__all__ = ["API_VERSION", "router"]

API_VERSION = "0.13.0"
"""The release of Ollama whose API this is: clients ask for it, and refuse what is too old."""

router = APIRouter(tags=["ollama"], route_class=JsonRoute)


@router.head("/api/version", include_in_schema=False)
@router.get("/api/version")
async def version() -> dict[str, str]:
    """Which version of Ollama's API this is, and which of the engine."""
    return {"version": API_VERSION, "ollama_engine": ollama_engine.__version__}


@router.head("/api/status", include_in_schema=False)
@router.get("/api/status")
async def status() -> dict[str, Any]:
    """Nothing here runs in a cloud."""
    return {"cloud": {"disabled": True, "source": "none"}}


@router.get("/api/ps")
async def running(service: Annotated[Service, Depends(service_of)]) -> Response:
    """The models that are loaded, the one that expires last first."""
    loaded = service.manager.loaded()
    return json_response({"models": await asyncio.to_thread(lambda: list(map(row, loaded)))})


def row(loaded: LoadedModel) -> dict[str, Any]:
    """A loaded model in /api/ps."""
    stored, facts = loaded.model.stored, loaded.model.facts
    return {
        "name": stored.name,
        "model": stored.name,
        "size": facts.memory_bytes,
        "digest": stored.digest,
        "details": details(stored, short_facts(stored)),
        "expires_at": timestamp(min(loaded.expires_at, time.time() + FOREVER)),
        "size_vram": facts.device_bytes,
        "context_length": facts.num_ctx,
        "devices": {device.device: device.allocated + device.mapped for device in facts.devices},
    }
