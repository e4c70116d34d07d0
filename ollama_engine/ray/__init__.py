"""Replicas on Ray: the server of `ollama_engine.server` over many engines, and answers to Ray Data's rows.

The extra `ray` has what this room needs: pip install 'ollama_engine[ray]'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.lazy import lazy_names

if TYPE_CHECKING:
    from ollama_engine.ray.application import ReplicaOptions, application, build
    from ollama_engine.ray.batch_generator import BatchGenerator

__all__ = ["BatchGenerator", "ReplicaOptions", "application", "build"]

_HOMES = {
    "BatchGenerator": "batch_generator",
    "ReplicaOptions": "application",
    "application": "application",
    "build": "application",
}

_get, __dir__ = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> object:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        told = f"{__name__}.{name} needs Ray, which is not installed: pip install 'ollama_engine[ray]'"
        raise ModuleNotFoundError(told, name="ray") from None
