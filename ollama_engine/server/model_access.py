"""A model by its name, held for one request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ollama_engine.server.errors import ApiError
from ollama_engine.server.requests.options import read_options
from ollama_engine.server.served import ServedModel
from ollama_engine.server.service import Service

__all__ = ["leased", "named_or_only"]

DOES = {"completion": "generate text", "embedding": "make embeddings"}


@asynccontextmanager
async def leased(service: Service, name: str, capability: str | None = None) -> AsyncIterator[ServedModel]:
    """The model of that name, loaded, with its own parameters, until the block ends.

    Raises ModelNotFoundError, what `ManagesModels.lease` raises, and ApiError for a model without that capability.
    """
    stored = await asyncio.to_thread(service.library.find, name)
    async with service.manager.lease(stored, read_options(stored.parameters).runner) as lease:
        if capability is not None and capability not in lease.model.facts.capabilities:
            raise ApiError(400, f'"{name}" does not {DOES[capability]}', param="model")
        yield lease.model


def named_or_only(service: Service, name: str | None) -> str:
    """The name, or that of the only model that is loaded. Raises ApiError where that is not one."""
    if name is not None:
        return name
    loaded = [row.model.stored.name for row in service.manager.loaded()]
    if len(loaded) != 1:
        names = f" ({', '.join(loaded)})" if loaded else ""
        raise ApiError(400, f"model: name one, for {len(loaded)} are loaded{names}", param="model")
    return loaded[0]
