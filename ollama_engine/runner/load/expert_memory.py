"""Experts of a mixture that is larger than memory: whether they get a bounded cache, and how large that is."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Mapping

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, Option
from ollama_engine.ml.device.hostmem import available_bytes
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.weights.weight_plan import block_of_tensor, has_experts
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.runner.load.memory_plan import layer_cache, plan_states
from ollama_engine.runner.load.serving_memory import LONG_TEXTS
from ollama_engine.runner.load.sizes import declared, graph_bytes, is_encoder

__all__ = ["keep_experts", "plan_experts"]

log = logging.getLogger(__name__)

PROGRAM = 64 << 20
"""Bytes that stay free beside a cache of experts: a program's own pages, which count as free although it needs them."""
RESERVED = 32
"""One of this many parts of the memory stays free as well."""


def plan_experts(gguf: GGUFFile, config: EngineConfig, *, cpu_alone: bool) -> int | None:
    """Bytes of the cache that experts get; None where they are read as all other weights are.

    By default there is one where weights from the mapped file, and what the model needs beside them, are more than the
    available memory. Raises ConfigError for a cache that does not hold a layer.
    """
    asked = config.expert_cache_bytes
    layers = Counter[int]()
    for info in gguf.tensors.values():
        if has_experts(info):
            layers[block_of_tensor(info.name) or 0] += info.nbytes
    if asked == 0 or not layers or not cpu_alone or sys.platform != "linux":
        if asked:
            log.warning("expert_cache_bytes=%d has no effect: it is for mixtures of experts that the CPU alone "
                        "computes, on Linux", asked)  # fmt: skip
        return None
    least, total = max(layers.values()), layers.total()
    if asked is not None:
        if asked < least:
            raise ConfigError(Option("expert_cache_bytes"), f" is 0, or at least {least}: the experts of a layer, most "
                              f"of which a prompt uses at once; got {asked}")  # fmt: skip
        return min(asked, total)
    weights, available = sum(info.nbytes for info in gguf.tensors.values()), available_bytes()
    if not config.mmap or weights < available // 2:
        return None
    beside = _beside_weights(gguf, config)
    if weights + beside <= available - PROGRAM:
        return None
    room = _left(available) - beside - (weights - total)
    if room >= least:
        return room
    log.warning("of the %d MiB that are available, %d MiB are left for experts, but those of a layer take %d MiB: they "
                "are read from the mapped file, slowly", available >> 20, max(0, room) >> 20, least >> 20)  # fmt: skip
    return None


def keep_experts(weights: Weights, config: EngineConfig, serving: Mapping[str, int]) -> None:
    """Give the cache of experts its size, when all else that loading takes has its memory."""
    if weights.experts is None:
        return
    total = sum(info.nbytes for info in weights.plan.cached.values())
    available = available_bytes()
    later = sum(nbytes for purpose, nbytes in serving.items() if purpose != LONG_TEXTS)
    room = config.expert_cache_bytes or max(weights.experts.layer_bytes, _left(available) - later)
    weights.limit_experts(min(room, total))
    log.info("experts: %d of %d MiB are in memory at once; others are read from the file when the router chooses them",
             min(room, total) >> 20, total >> 20)  # fmt: skip


def _left(available: int) -> int:
    return available - available // RESERVED - PROGRAM


def _beside_weights(gguf: GGUFFile, config: EngineConfig) -> int:
    """Bytes for keys and values, states, and the largest graph."""
    with declared(gguf) as (model, _):
        if model is None:
            return 0
        config = config.for_model(model.context_length)
        graph = graph_bytes(gguf, model, config, flash_attention=config.flash_attention != "off")
        if is_encoder(model):
            return graph
        cache = sum(layer_cache(layer, model, config) for layer in model.cache_layers)
        return graph + plan_states(model, config) + cache
