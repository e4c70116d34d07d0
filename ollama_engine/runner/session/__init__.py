"""Sessions: texts that stay in the cache, and their files; the prefix store of a model.

The functions below are imported when they are first used: few programs load a session or keep prefixes on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.lazy import lazy_names

if TYPE_CHECKING:
    from ollama_engine.runner.session.opening import load_session
    from ollama_engine.runner.session.stored import attach_prefix_store

__all__ = ["attach_prefix_store", "load_session"]

_HOMES = {"attach_prefix_store": "stored", "load_session": "opening"}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
