"""Calls of an Engine's methods from another process: which there are, and the end that has the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ollama_engine.engine import Engine
from ollama_engine.errors import ConfigError
from ollama_engine.server.isolation.codec import decode, encode
from ollama_engine.server.isolation.crossing import beside

__all__ = ["AWAITED", "FACTS", "QUICK", "STREAMED", "THREADED", "call_engine", "engine_stream"]

AWAITED: Mapping[str, str] = {name: f"a{name}" for name in (
    "generate", "chat", "embed", "embeddings", "embed_image", "rank", "score",
)}  # fmt: skip
"""Methods with a result to wait for -> those that do it for asyncio: cancelling them cancels the request."""
THREADED = (
    "logits", "tokenize", "detokenize", "apply_template", "chat_template", "set_priority", "trace", "sleep", "wake_up",
)  # fmt: skip
"""Methods that may take long, and that nothing cancels."""
QUICK = ("token_bytes", "slots", "steps", "cancel")
FACTS = ("info", "memory", "metrics", "chat_templates", "config", "is_sleeping")
"""Properties."""
STREAMED: Mapping[str, str] = {"stream": "astream", "chat_stream": "achat_stream"}


async def call_engine(engine: Engine, body: Mapping[str, Any]) -> Any:
    """The encoded result of a method, or the value of a property. Raises what it raises."""
    name = body.get("method")
    if name in FACTS:
        return encode(getattr(engine, str(name)))
    method, args, kwargs = await _method(engine, body, {**AWAITED, **{name: name for name in (*THREADED, *QUICK)}})
    if name in AWAITED:
        return await beside(encode, await method(*args, **kwargs))
    if name in QUICK:
        return encode(method(*args, **kwargs))
    return await beside(encode, await asyncio.to_thread(method, *args, **kwargs))


async def engine_stream(engine: Engine, body: Mapping[str, Any]) -> Any:
    """Begin an answer in pieces. Raises what the engine refuses at once."""
    method, args, kwargs = await _method(engine, body, STREAMED)
    return method(*args, **kwargs)


async def _method(
    engine: Engine, body: Mapping[str, Any], allowed: Mapping[str, str]
) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    name = body.get("method")
    if not isinstance(name, str) or name not in allowed:
        raise ConfigError(f"a method is one of {', '.join(allowed)}, got {name!r:.40}")
    args, kwargs = await beside(decode, [body["args"], body["kwargs"]])
    return getattr(engine, allowed[name]), args, kwargs
