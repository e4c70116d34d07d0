"""Routes: Ollama's API for models on disk: tags, show, copy, delete."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import datetime, timezone
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.background import BackgroundTask
from starlette.responses import Response

from ollama_engine.errors import ConfigError, EngineError, ModelNotFoundError
from ollama_engine.server.errors import ApiError
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.json_response import json_response
from ollama_engine.server.library import Library
from ollama_engine.server.ollama.models_schemas import CopyRequest, DeleteRequest, ShowRequest
from ollama_engine.server.service import Service, service_of
from ollama_engine.store.gguf_facts import GGUFFacts, read_facts
from ollama_engine.store.model_store import ModelStore
from ollama_engine.store.names import ModelName
from ollama_engine.store.showing import (
    details,
    facts_of,
    model_capabilities,
    modelfile,
    parameter_lines,
    short_facts,
)
from ollama_engine.store.stored_model import StoredModel

__all__ = ["model_name", "router", "store_of"]

router = APIRouter(route_class=JsonRoute)

HIDDEN_KEYS = ("general.name", "tokenizer.chat_template")
"""Keys of a file that `model_info` leaves out: the first is another name for it, the second is `template`."""


async def store_of(service: Annotated[Service, Depends(service_of)]) -> ModelStore:
    """The models on disk."""
    if service.library.store is None:
        raise ApiError(404, "this server has no model store")
    return service.library.store


Served = Annotated[Service, Depends(service_of)]
Store = Annotated[ModelStore, Depends(store_of)]


def model_name(text: str) -> ModelName:
    """The name that a request says. Raises ApiError 400 in Ollama's words."""
    if not text:
        raise ApiError(400, "model is required")
    try:
        return ModelName.parse(text)
    except ConfigError as error:
        raise ApiError(400, f"invalid model name: {error}") from None


@router.head("/api/tags", include_in_schema=False)
@router.get("/api/tags")
async def tags(service: Served) -> Response:
    """All models that can be loaded, the newest first."""
    return json_response({"models": await asyncio.to_thread(_tags, service.library)})


def _tags(library: Library) -> list[dict[str, Any]]:
    return [_tag(stored) for stored in library.list()]


def _tag(stored: StoredModel) -> dict[str, Any]:
    facts = short_facts(stored)
    row = {
        "name": stored.name,
        "model": stored.name,
        "modified_at": _rfc3339(stored.modified),
        "size": stored.size,
        "digest": stored.digest,
        "details": details(stored, facts),
    }
    return row if facts is None else {**row, "capabilities": model_capabilities(stored, facts)}


@router.post("/api/show")
async def show(body: ShowRequest, service: Served) -> Response:
    """All that is known of a model."""
    model_name(body.chosen_name)
    return await asyncio.to_thread(lambda: json_response(_show(service.library, body)))


def _show(library: Library, body: ShowRequest) -> dict[str, Any]:
    stored = library.find(body.chosen_name)
    stored = dataclasses.replace(
        stored,
        system=body.system or stored.system,
        template=body.template or stored.template,
        parameters={**stored.parameters, **(body.options or {})},
    )
    facts = read_facts(stored.model_path, arrays=True) if body.verbose else facts_of(stored)
    shown: dict[str, Any] = {
        "license": "\n".join(stored.licenses),
        "modelfile": modelfile(stored),
        "parameters": parameter_lines(stored),
        "template": stored.template if stored.template is not None else facts.template or "",
        "system": stored.system,
        "details": details(stored, facts),
        "messages": list(stored.messages) or None,
        "model_info": _model_info(facts),
        "capabilities": model_capabilities(stored, facts),
        "modified_at": _rfc3339(stored.modified),
    }
    for kind in ("renderer", "parser", "requires"):
        if stored.config.get(kind):
            shown[kind] = stored.config[kind]
    if stored.projector_path is not None:
        part = read_facts(stored.projector_path, arrays=body.verbose)
        shown["projector_info"] = _model_info(part)
    if body.verbose:
        shown["tensors"] = [{"name": name, "type": dtype, "shape": list(shape)} for name, dtype, shape in facts.tensors]
    return {key: value for key, value in shown.items() if value not in ("", None)}


def _model_info(facts: GGUFFacts) -> dict[str, Any]:
    known = {key: value for key, value in facts.metadata.items() if key not in HIDDEN_KEYS}
    return {**known, "general.parameter_count": facts.n_parameters}


@router.post("/api/copy")
async def copy(body: CopyRequest, service: Served, store: Store) -> Response:
    """Give a model another name too."""
    source, target = model_name(body.source), model_name(body.destination)
    try:
        await asyncio.to_thread(store.copy, source, target)
    except ModelNotFoundError:
        if not service.library.outside_store(source):
            raise
        raise ApiError(
            400,
            f"model '{source.short}' is not in the store, and cannot be copied; create '{target.short}' "
            f"from '{body.source}'",
        ) from None
    return Response()


@router.delete("/api/delete")
async def delete(body: DeleteRequest, service: Served, store: Store) -> Response:
    """Unload a model and remove it from the store."""
    name = model_name(body.chosen_name)
    try:
        entry = await asyncio.to_thread(store.entry, name)
    except ModelNotFoundError:
        if not service.library.outside_store(name):
            raise
        raise ApiError(400, f"model '{name.short}' is not in the store, and cannot be removed") from None
    try:
        stored = await asyncio.to_thread(store.find, name)
    except EngineError:  # a damaged one was never loaded, and can be removed
        stored = None
    await asyncio.to_thread(store.delete, entry.name)
    # In the background: requests that still run may take long to end, and have the files open.
    return Response(background=None if stored is None else BackgroundTask(service.manager.unload, stored))


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")
