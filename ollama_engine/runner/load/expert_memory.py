"""Experts of a mixture that is larger than memory: whether they get a bounded cache, and how large that is."""

from __future__ import annotations

import logging
import sys
from collections import Counter

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, Option
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.weights.weight_plan import block_of_tensor, has_experts

__all__ = ["plan_experts"]

log = logging.getLogger(__name__)


def plan_experts(gguf: GGUFFile, config: EngineConfig, *, cpu_alone: bool, loads: bool = False) -> int | None:
    """Bytes of the cache that experts get; None where they are read as all other weights are.

    `loads`: not only planned, so an option without effect is logged; a server has it for models of all kinds.
    Raises ConfigError for a cache that does not hold a layer.
    """
    most = config.expert_cache_bytes
    if most is None:
        return None
    layers = Counter[int]()
    for info in gguf.tensors.values():
        if has_experts(info):
            layers[block_of_tensor(info.name) or 0] += info.nbytes
    if not layers or not cpu_alone or sys.platform != "linux":
        if loads:
            log.info("expert_cache_bytes=%d has no effect: it is for mixtures of experts that the CPU alone computes, "
                     "on Linux", most)  # fmt: skip
        return None
    least = max(layers.values())
    if most < least:
        raise ConfigError(Option("expert_cache_bytes"), f" is at least {least}: the experts of a layer, most of which "
                          f"a prompt uses at once; got {most}")  # fmt: skip
    return most
