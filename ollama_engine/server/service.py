"""Service: what all routes share: settings, the models that there are, and those that are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import Request

if TYPE_CHECKING:
    from ollama_engine.server.library import Library
    from ollama_engine.server.managing import ManagesModels
    from ollama_engine.server.settings import ServerSettings

__all__ = ["Service", "service_of"]


@dataclass(frozen=True)
class Service:
    """The objects that all routes share.

    Attributes:
        settings: of the server.
        library: models that can be loaded.
        manager: models that are loaded.
    """

    settings: ServerSettings
    library: Library
    manager: ManagesModels


async def service_of(request: Request) -> Service:
    """The service of the app that answers a request; routes take it as `Annotated[Service, Depends(service_of)]`.

    It waits for nothing, and is a coroutine since FastAPI calls other functions in a thread.
    """
    service: Service = request.app.state.service
    return service
