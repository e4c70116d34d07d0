"""Memory of a model before it is taken: which sizes follow from the options, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ollama_engine.config import EngineConfig
from ollama_engine.errors import NoMemoryError
from ollama_engine.kvcache import LayerShape
from ollama_engine.kvcache.config import HISTORY_PADDING
from ollama_engine.kvcache.mask import index_bytes, mask_bytes
from ollama_engine.kvcache.paged import MOST_LISTS
from ollama_engine.ml.device.hostmem import available_bytes
from ollama_engine.ml.device.memory import DeviceMemory, MemoryReport
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import Model
from ollama_engine.runner.load.errors import SMALLER
from ollama_engine.runner.load.vision import traits_of
from ollama_engine.runner.schedule.checkpoints import MOST_RETURNS

if TYPE_CHECKING:
    from ollama_engine.ml.device.placement_plan import PlacementPlan

__all__ = [
    "RESUME_TOKENS",
    "batch_size_of",
    "cells_bytes",
    "cells_of",
    "image_slots",
    "layer_cache",
    "layer_masks",
    "memory_report",
    "num_ctx_of",
    "plan_cache",
    "plan_masks",
    "plan_states",
    "refuse_cache_if_too_large",
]

RESUME_TOKENS = 1024
"""How many positions back a sequence can be resumed, where layers have a window or chunk."""

_NOTHING: Mapping[str, int] = MappingProxyType({})

MOST_CHECKPOINTS = 512
"""Most checkpoints of recurrent states, however small they are: eight for each sequence that the prefix cache keeps."""

IMAGES_MORE = 3
"""Images that can be stored beside one for each request."""


def num_ctx_of(config: EngineConfig) -> int:
    assert config.num_ctx is not None, "decided once the model is known"
    return config.num_ctx


def batch_size_of(config: EngineConfig) -> int:
    """`batch_size`, at most all contexts together, and at least a token for each of `parallel` sequences."""
    return max(min(config.batch_size, num_ctx_of(config) * config.parallel), config.parallel)


def image_slots(config: EngineConfig) -> int:
    """Images that layers with cross-attention store: one for each request, and some more.

    So a prompt may have several that are seen together, and a next one can replace another.
    """
    return config.parallel + IMAGES_MORE


def cells_of(layer: LayerShape, model: Model, config: EngineConfig) -> int:
    """Cells of a layer for all requests. With a window or chunk: what a token sees, what can be resumed, and the batch.

    For layers that store images: `image_slots`; for those with recurrent states alone: `state_slots`.
    """
    if not layer.attends:
        return state_slots(model, config)
    if layer.image_rows is not None:
        return image_slots(config)
    num_ctx = num_ctx_of(config)
    limit = layer.window or layer.chunk or num_ctx
    kept = min(num_ctx, limit + RESUME_TOKENS)
    traits = traits_of(model)
    batch = max(config.batch_size, 0 if traits is None else traits.largest_group)
    cells = config.parallel * kept + (batch if kept < num_ctx else 0)
    return _padded(cells)


def state_slots(model: Model, config: EngineConfig) -> int:
    """Recurrent states that are stored: the one that a running sequence reads, the one it writes, and checkpoints.

    And those behind the rows of a draft.
    """
    nbytes = sum(layer.state_bytes for layer in model.cache_layers)
    if not nbytes:
        return 0
    checkpoints = max(config.parallel, min(config.state_cache_bytes // nbytes, MOST_CHECKPOINTS))
    return 2 * config.parallel + checkpoints + (0 if config.draft == "off" else MOST_RETURNS)


def _padded(rows: int) -> int:
    """As many rows as a cache that is asked for this many has."""
    return -(-rows // HISTORY_PADDING) * HISTORY_PADDING


def layer_cache(layer: LayerShape, model: Model, config: EngineConfig) -> int:
    """Bytes for keys and values of a layer."""
    return cells_bytes(layer, cells_of(layer, model, config), config) if layer.attends else 0


def cells_bytes(layer: LayerShape, n_cells: int, config: EngineConfig) -> int:
    """Bytes for so many cells of a layer."""
    elements, nbytes = block_of(config.kv_cache_type)
    rows = _padded(n_cells * (layer.image_rows or 1))
    return rows * (layer.n_keys + layer.n_values) // elements * nbytes


def plan_cache(backend: Backend, weights: Weights, model: Model, config: EngineConfig) -> dict[str, int]:
    """Bytes for keys and values and recurrent states, {device name: bytes}."""
    planned: dict[str, int] = {}
    for number, layer in enumerate(model.cache_layers):
        device = backend.devices[weights.plan.device_of_layer(number)].name
        planned[device] = planned.get(device, 0) + layer_cache(layer, model, config)
    host = backend.devices[-1].name
    planned[host] = planned.get(host, 0) + plan_states(model, config)
    return planned


def plan_states(model: Model, config: EngineConfig) -> int:
    """Bytes for the recurrent states of all layers, which lie on the CPU."""
    return sum(layer.state_bytes for layer in model.cache_layers) * state_slots(model, config)


def plan_masks(model: Model, config: EngineConfig) -> int:
    """Host bytes for the masks of a full batch, or the KV indices of a short one, over all kinds of layers."""
    layers = (layer for layer in model.cache_layers if layer.attends and layer.image_rows is None)
    kinds = {(layer.window, layer.chunk): layer for layer in layers}
    return sum(layer_masks(layer, model, config) for layer in kinds.values())


def layer_masks(layer: LayerShape, model: Model, config: EngineConfig) -> int:
    """The part of `plan_masks` that layers of one kind share."""
    size, n = batch_size_of(config), cells_of(layer, model, config)
    return max(mask_bytes(size, n), index_bytes(min(size, config.parallel, MOST_LISTS), n))


def refuse_cache_if_too_large(backend: Backend, planned: dict[str, int], masks: int) -> None:
    host = backend.devices[-1]
    for device in backend.devices:
        cache, beside, free = planned.get(device.name, 0), 0, device.memory_free
        if device is host:
            beside, free = masks, available_bytes()
        if cache + beside > free:
            also = f" and {beside >> 20} MiB for masks" if beside else ""
            raise NoMemoryError(
                f"the cache takes {cache >> 20} MiB{also} on {device.name}, which has {free >> 20} MiB free",
                advice=SMALLER,
            )


def memory_report(
    backend: Backend, weights: Weights, cache: dict[str, int], masks: int, placement: PlacementPlan | None = None,
    serving: Mapping[str, int] | None = None, states: Mapping[str, int] = _NOTHING,
) -> MemoryReport:  # fmt: skip
    """`states`: the part of `cache` that recurrent states take."""
    plan, graph = weights.planned(), backend.graph_bytes()
    devices = tuple(
        DeviceMemory(
            device=d.name,
            cache=cache.get(d.name, 0),
            states=states.get(d.name, 0),
            graph=graph[d.name],
            work=backend.work_bytes() + masks if d is backend.devices[-1] else 0,
            **plan[d.name],
        )
        for d in backend.devices
    )
    return MemoryReport(devices, weights.plan.by_layer(), placement, serving or {})
