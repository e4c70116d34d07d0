"""The live view of a loaded model, as plain data."""

from __future__ import annotations

import math
from typing import Any

from ollama_engine.runner.observe.trace import StepRecord
from ollama_engine.server.local_model import plain
from ollama_engine.server.managing import LoadedModel

__all__ = ["live_view"]

STEPS = 240
"""Steps that the timeline has room for."""
SHOWN = (
    "prompt_tokens", "cached_tokens", "completion_tokens", "prompt_tokens_per_second", "completion_tokens_per_second",
    "queued", "running", "preemptions", "drafted_tokens", "accepted_tokens", "encoded_images", "image_hits",
    "image_cache_bytes", "steps", "graphs_built", "graphs_reused", "evictions", "shifts",
)  # fmt: skip


async def live_view(loaded: LoadedModel, after: float) -> dict[str, Any]:
    """Requests, counters, cells and the steps that began after that time, of one model."""
    model = loaded.model
    metrics = await model.metrics()
    steps = [shown for step in await model.steps(STEPS) if (shown := _step(step)) is not None and shown["at"] > after]
    return {
        "name": model.stored.name,
        "num_ctx": model.facts.num_ctx,
        "parallel": model.facts.parallel,
        "memory_bytes": model.facts.memory_bytes,
        "expires_at": loaded.expires_at if math.isfinite(loaded.expires_at) else None,
        "metrics": {name: metrics[name] for name in SHOWN},
        "cells": _cells(metrics["cells"]),
        "requests": plain(await model.slots()),
        "steps": steps,
    }


def _cells(counts: Any) -> dict[str, int]:
    used, free, shared = counts.values() if isinstance(counts, dict) else counts
    return {"used": used, "free": free, "shared": shared}


def _step(step: StepRecord) -> dict[str, Any] | None:
    """Times in seconds of the engine's clock; None for a step without phases."""
    if not step.spans:
        return None
    begin, end = min(span.begin for span in step.spans), max(span.end for span in step.spans)
    return {
        "number": step.number,
        "at": begin,
        "seconds": end - begin,
        "phases": {span.phase: span.end - span.begin for span in step.spans},
        "prompt": step.prompt_tokens,
        "completion": step.completion_tokens,
        "sequences": step.sequences,
    }
