"""ManagesModels: who keeps which models loaded, as the APIs see it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ollama_engine.server.served import ServedModel
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["KeepAlive", "LoadedModel", "LoadingModel", "ManagesModels", "ModelLease"]

KeepAlive = float | None
"""Seconds that a model stays loaded after its last request: math.inf for ever, 0 not at all, None as the server's."""


@dataclass(frozen=True, slots=True)
class ModelLease:
    """A loaded model, held for one request: it is not unloaded meanwhile.

    Attributes:
        model: what answers.
        load_seconds: how long this request waited for the model to be loaded.
    """

    model: ServedModel
    load_seconds: float


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A row of /api/ps, or a model that sleeps.

    Attributes:
        model: what is loaded.
        expires_at: seconds since 1970 at which it is unloaded if no request comes, or closed where it sleeps;
            math.inf for never.
        requests: how many hold it now.
    """

    model: ServedModel
    expires_at: float
    requests: int


@dataclass(frozen=True, slots=True)
class LoadingModel:
    """A model that is being loaded.

    Attributes:
        stored: which.
        done: bytes of its weights that are loaded.
        total: of how many; 0 while that is not known.
        seconds: since it began.
    """

    stored: StoredModel
    done: int
    total: int
    seconds: float


class ManagesModels(Protocol):
    """Loads models on demand, shares each among all requests that want it with like options, and unloads them."""

    def lease(
        self, stored: StoredModel, options: Mapping[str, Any], keep_alive: KeepAlive = None
    ) -> AbstractAsyncContextManager[ModelLease]:
        """Hold a model, loaded with these runner options (Ollama's names: "num_ctx", "num_batch", "num_gpu" ...).

        Options that the loaded one differs in have it loaded anew, when its requests have ended. Raises
        EngineBusyError when too many requests wait, LoadError (with what failed) when it cannot be loaded.
        """

    def loaded(self) -> list[LoadedModel]:
        """The models that are loaded, the one that expires last first."""

    def sleeping(self) -> list[LoadedModel]:
        """The models whose memory is given back, and which go on from a file with the next request."""

    def loading(self) -> list[LoadingModel]:
        """The models that are being loaded."""

    async def unload(self, stored: StoredModel) -> bool:
        """Close a model, so that nothing is kept of it: now where nobody uses it, otherwise when its requests have
        ended, for which this does not wait. False where it is neither loaded nor asleep.
        """

    async def close(self) -> None:
        """Unload all; requests that still run end with ClosedError."""
