"""Routes that show what the server is doing: health, metrics, slots, trace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.responses import JSONResponse, Response

from ollama_engine.errors import ClosedError, ModelProcessError
from ollama_engine.server.errors import ApiError
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.local_model import plain
from ollama_engine.server.managing import LoadedModel
from ollama_engine.server.native.metrics import ModelsCollector
from ollama_engine.server.native.schemas import PriorityRequest
from ollama_engine.server.served import ServedModel
from ollama_engine.server.service import Service, service_of

__all__ = ["router"]

router = APIRouter(route_class=JsonRoute)

TheService = Annotated[Service, Depends(service_of)]


@router.get("/health")
@router.get("/v1/health", include_in_schema=False)
async def health(service: TheService) -> dict[str, Any]:
    """Whether the server answers; while models are loaded, how far they are (0 to 1)."""
    loading = [
        {"model": row.stored.name, "progress": row.done / max(1, row.total), "seconds": round(row.seconds, 3)}
        for row in service.manager.loading()
    ]
    return {"status": "ok", **({"loading": loading} if loading else {})}


@router.get("/metrics")
async def metrics(service: TheService) -> Response:
    """Counters and gauges of all models that are loaded or sleep, in Prometheus' text format."""
    registry = CollectorRegistry()
    awake, asleep = service.manager.loaded(), service.manager.sleeping()
    registry.register(ModelsCollector(await _with_metrics(awake), await _with_metrics(asleep)))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _with_metrics(rows: Sequence[LoadedModel]) -> list[tuple[LoadedModel, Mapping[str, Any]]]:
    results = await asyncio.gather(*(row.model.metrics() for row in rows), return_exceptions=True)
    return [
        (row, values)
        for row, values in zip(rows, results, strict=True)
        if not isinstance(values, BaseException)  # it was unloaded meanwhile
    ]


@router.get("/slots")
async def slots(service: TheService, model: str | None = None) -> JSONResponse:
    """The requests that are in the engines now."""
    rows: list[dict[str, Any]] = []
    for served in _loaded(service, model):
        try:
            infos = await served.slots()
        except (ClosedError, ModelProcessError):
            continue
        rows += [
            {**plain(info), "model": served.stored.name, "n_ctx": served.facts.num_ctx,
             "is_processing": info.sequence is not None}
            for info in infos
        ]  # fmt: skip
    return JSONResponse(rows)


@router.delete("/slots/{request}")
async def cancel(service: TheService, request: int, model: str | None = None) -> dict[str, Any]:
    """End a request of any client, by its number in /slots: that client gets an error."""
    return await _steered(service, request, model, None)


@router.patch("/slots/{request}")
async def reprioritize(
    service: TheService, request: int, body: PriorityRequest, model: str | None = None
) -> dict[str, Any]:
    """Change the priority of a request of any client."""
    return await _steered(service, request, model, body.priority)


async def _steered(service: Service, request: int, name: str | None, priority: int | None) -> dict[str, Any]:
    model = _only(service, name)
    if not await model.steer(request, priority):
        raise ApiError(404, f"request {request} is not in the engine of '{model.stored.name}'", param="request")
    done = {"cancelled": True} if priority is None else {"priority": priority}
    return {"id": request, "model": model.stored.name, **done}


@router.get("/trace")
async def trace(service: TheService, model: str | None = None) -> Response:
    """The timeline of a model's latest steps and requests, for a trace viewer (Perfetto, Chrome's)."""
    return Response(await _only(service, model).trace(), media_type="application/json")


def _only(service: Service, name: str | None) -> ServedModel:
    """The loaded model of a name, or the only one. Raises ApiError, and ModelNotFoundError."""
    models = _loaded(service, name)
    if len(models) != 1:
        raise ApiError(400, f"model: name one, for {len(models)} are loaded", param="model")
    return models[0]


def _loaded(service: Service, name: str | None) -> list[ServedModel]:
    """The loaded models, or that of a name. Raises ModelNotFoundError; ApiError where it is not loaded."""
    models = [row.model for row in service.manager.loaded()]
    if name is None:
        return models
    digest = service.library.find(name).digest
    matching = [model for model in models if model.stored.digest == digest]
    if not matching:
        raise ApiError(404, f"model '{name}' is not loaded", param="model")
    return matching
