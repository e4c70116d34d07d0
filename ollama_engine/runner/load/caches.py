"""The cache of a model that is being loaded, and executors that need none: for embeddings of texts."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, Option
from ollama_engine.kvcache import Cache, CacheConfig, CompositeCache, LayerShape, make_cache, make_null_cache
from ollama_engine.kvcache.null_paged import lists_rows
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.ops.nn import supports_flash_attention
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import (
    Embeds,
    Model,
    ShiftsKeys,
)
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.memory_plan import (
    RESUME_TOKENS,
    cells_of,
    num_ctx_of,
)
from ollama_engine.runner.load.vision import images_of_batch, traits_beside_text

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

__all__ = ["make_encoder", "make_model_cache", "make_text_executor"]


def make_model_cache(backend: Backend, weights: Weights, model: Model, config: EngineConfig) -> Cache:
    layers = model.cache_layers
    devices = [weights.plan.device_of_layer(i) for i in range(len(layers))]
    cache_config = CacheConfig(
        dtype=config.kv_cache_type,
        flash_attention=config.flash_attention != "off",
        sequences=config.parallel,
        images=images_of_batch(model),
    )
    for layer in layers:
        cache_config.check(layer)
    flash_attention = _decide_flash_attention(backend, config, layers, config.kv_cache_type)
    cache_config = replace(cache_config, flash_attention=flash_attention)
    return make_cache(
        backend, layers, devices, cache_config, lambda layer: cells_of(layer, model, config), memory=RESUME_TOKENS,
        shift_keys=model.shift_keys if isinstance(model, ShiftsKeys) else None,
    )  # fmt: skip


def make_encoder(backend: Backend, model: Model, config: EngineConfig, *, causal: bool) -> tuple[Cache, Executor]:
    """Cache and executor of a text encoder. It caches nothing, and its batches hold `num_ctx` tokens: a whole text.

    `causal`: whether its tokens attend to those before them only.
    """
    layers = model.cache_layers
    flash_attention = _decide_flash_attention(backend, config, layers, "f32")
    cache = make_null_cache(layers, flash_attention=flash_attention, causal=causal, paged=lists_rows(backend))
    size = max(config.batch_size, num_ctx_of(config))
    return CompositeCache((), ()), Executor(backend, model, cache, size, size)


def make_text_executor(
    backend: Backend, model: Model, config: EngineConfig, *, reserve: bool = True
) -> Executor | None:
    """The executor for embeddings with a generative model: as for an encoder, but with causal attention.

    With `reserve`, takes the memory for a full batch of texts. All graphs of the backend share their memory, so this
    often adds none. A text longer than `batch_size` takes more when it comes (`serving_memory.text_bounds`): reserving
    `num_ctx` tokens in one graph would take several times the memory that answers need.
    """
    layers = model.cache_layers
    if not isinstance(model, Embeds):
        return None
    flash_attention = config.flash_attention != "off" and not _without_flash_attention(backend, layers, "f32")
    cache = make_null_cache(layers, flash_attention=flash_attention, causal=True, paged=lists_rows(backend))
    size = max(config.batch_size, num_ctx_of(config))
    made = Executor(backend, model, cache, size, size, forward=model.hidden, traits=traits_beside_text(model))
    if reserve:
        made.reserve_batch(config.batch_size)
    return made


def _decide_flash_attention(backend: Backend, config: EngineConfig, layers: tuple[LayerShape, ...], dtype: str) -> bool:
    if config.flash_attention == "off":
        return False
    unsupported = _without_flash_attention(backend, layers, dtype)
    if unsupported and config.flash_attention == "on":
        raise ConfigError(
            Option("flash_attention"), f" is on, but {', '.join(unsupported)} has no kernel for this model's heads"
        )
    if unsupported:
        log.info("flash attention is off: %s has no kernel for this model's heads", ", ".join(unsupported))
    return not unsupported


def _without_flash_attention(backend: Backend, layers: tuple[LayerShape, ...], dtype: str) -> list[str]:
    """Names of the devices without a flash attention kernel for these layers."""
    return [
        device.name
        for device in backend.devices
        for layer in sorted({(s.key_dim, s.value_dim) for s in layers if s.attends})
        if not supports_flash_attention(device, *layer, dtype)
    ]
