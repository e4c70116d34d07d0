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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
