"""Planning: how much memory a model will take, found out without taking it."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ShapeError
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.gguf import GGUFFile
from ollama_engine.ml.memory import DeviceMemory, MemoryReport
from ollama_engine.ml.weights import Weights
from ollama_engine.models import EmbedsImages, Model, TextEncoder, known_names, model_class, ties_output
from ollama_engine.runner.load.errors import naming
from ollama_engine.runner.load.loading import LOGIT_ROWS, backend_params, max_nodes, opened
from ollama_engine.runner.load.memory_plan import plan_cache, plan_masks
from ollama_engine.runner.load.model_path import model_path
from ollama_engine.runner.load.projector import known_metadata

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["plan_memory"]

ROWS_ALIVE = 5
"""Results of a graph that live at once, each as wide as its widest matrix: on the files that were measured 2 to 4."""


def plan_memory(
    source: str | os.PathLike[str], config: EngineConfig, *, projector: str | os.PathLike[str] | None = None
) -> MemoryReport:
    """The memory that loading this file with these options will take. Reads its header, and takes no memory for it.

    Weights and cache are as loading takes them; `graph`, which loading measures, is an estimate on the safe side, and
    `work` is what the masks of a full batch take at most. `load` still decides: other programs take memory meanwhile.

    Raises OSError, ModelFormatError, UnsupportedModelError, ConfigError.
    """
    path = model_path(source)
    with naming(path), contextlib.ExitStack() as undo:
        gguf = opened(path, path, projector, undo)
        metadata = known_metadata(gguf)
        factory = model_class(metadata.architecture)
        backend = undo.enter_context(Backend(backend_params(config), max_nodes=max_nodes(gguf)))
        weights = undo.enter_context(Weights(backend, gguf, tied=ties_output(factory)))
        weights.declare()
        cache: Mapping[str, int] = {}
        masks = 0
        with contextlib.suppress(ShapeError):  # a model that computes with weights while it is made: without a cache
            model = factory(metadata, known_names(gguf.architecture, weights))
            config = config.for_model(model.context_length)
            cache, masks = _cache(backend, weights, model, config)
        return _report(backend, weights, gguf, dict(cache), masks, config)


def _cache(backend: Backend, weights: Weights, model: Model, config: EngineConfig) -> tuple[Mapping[str, int], int]:
    """Bytes of keys and values by device, and of masks; encoders have neither."""
    if isinstance(model, TextEncoder | EmbedsImages):
        return {}, 0
    return plan_cache(backend, weights, model, config), plan_masks(model, config)


def _report(
    backend: Backend, weights: Weights, gguf: GGUFFile, cache: dict[str, int], masks: int, config: EngineConfig
) -> MemoryReport:
    plan = weights.planned()
    # Texts to embed fill batches beyond num_ctx.
    graph = 4 * (
        ROWS_ALIVE * config.batch_size * _widest(gguf, "blk.") + 2 * LOGIT_ROWS * _widest(gguf, "output", "token_embd")
    )
    used = [device for device in backend.devices if sum(plan[device.name].values())] or backend.devices[-1:]
    return MemoryReport(
        tuple(
            DeviceMemory(
                device=device.name,
                cache=cache.get(device.name, 0),
                graph=graph if device in used else 0,
                work=masks if device is backend.devices[-1] else 0,
                **plan[device.name],
            )
            for device in backend.devices
        ),
        weights.by_layer(),
    )


def _widest(gguf: GGUFFile, *prefixes: str) -> int:
    """The longest row that a matrix of these names makes."""
    return max((info.shape[1] for info in gguf.tensors.values()
                if info.name.startswith(prefixes) and len(info.shape) > 1), default=0)  # fmt: skip
