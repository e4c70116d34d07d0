"""What serving takes on top of what loading took: most bytes, by purpose. Host memory, but for graphs."""

from __future__ import annotations

from collections.abc import Mapping

from ollama_engine.config import EngineConfig
from ollama_engine.errors import NoMemoryError
from ollama_engine.input import MediaTraits
from ollama_engine.kvcache.mask import mask_bytes
from ollama_engine.kvcache.null_paged import lists_rows
from ollama_engine.ml.device.hostmem import available_bytes
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.types import block_of
from ollama_engine.models import Embeds, Model
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.memory_plan import batch_size_of, num_ctx_of
from ollama_engine.runner.load.vision import traits_of
from ollama_engine.runner.media.encoder import ImageMemory
from ollama_engine.runner.media.image_reader import PREPARED_BYTES
from ollama_engine.runner.schedule.prefix_blocks import BLOCK, most_in_memory

__all__ = ["LONG_TEXTS", "graph_bounds", "image_bounds", "prefix_bounds", "text_bounds"]

F32 = 4
LONG_TEXTS = "texts to embed beyond batch_size"


def image_bounds(model: Model, config: EngineConfig, image: ImageMemory | None) -> dict[str, int]:
    """Most bytes for images, where one takes as much as `image` says. Empty for a model that reads none.

    Beside the embeddings that are kept, each running request holds those of its next batch, and of the image that
    reaches into it. What open sessions hold comes on top: a session from a file has the embeddings of its images.
    """
    if image is None:
        return {}
    traits = traits_of(model) or MediaTraits()
    rows = batch_size_of(config) * F32 * traits.row_width(model.n_embd) if isinstance(model, Embeds) else 0
    held = min(rows, config.image_cache_bytes) if traits.groups_per_batch is None else 0
    held += image.embeddings * (traits.groups_per_batch or 1)
    return {
        "embeddings of images": max(config.image_cache_bytes, image.embeddings) + config.parallel * held,
        "prepared images": max(PREPARED_BYTES, image.prepared),
        # Its arrays are taken out of those that wait; embeddings are copied out of the graph.
        "the image that is encoded": image.prepared + image.constants + image.embeddings,
    }


def graph_bounds(*executors: Executor | None) -> dict[str, int]:
    """Most bytes of graphs that are kept for steps of the same shapes."""
    return {"graphs that are kept": sum(executor.kept_bytes for executor in executors if executor is not None)}


def prefix_bounds(model: Model, config: EngineConfig) -> dict[str, int]:
    """Most bytes of the prefix store's blocks in memory. Empty without a store."""
    if config.prefix_store == "off" or not model.cache_layers:
        return {}
    elements, nbytes = block_of(config.kv_cache_type)
    layers = [layer for layer in model.cache_layers if layer.attends and layer.image_rows is None]
    # A token behind a block sees one less than its window of it.
    seen = [BLOCK if layer.window is None else min(BLOCK, layer.window - 1) for layer in layers]
    rows = [n * (layer.n_keys + layer.n_values) // elements for n, layer in zip(seen, layers, strict=True)]
    images = [layer.image_rows * (layer.n_keys + layer.n_values) // elements
              for layer in model.cache_layers if layer.image_rows is not None]  # fmt: skip
    states = sum(layer.state_bytes for layer in model.cache_layers)
    block = (sum(rows) + sum(images)) * nbytes + states
    return {"prefixes on their way to disk and back": most_in_memory(block)}


def text_bounds(
    backend: Backend, executor: Executor | None, config: EngineConfig, taken: Mapping[str, int]
) -> dict[str, int]:
    """Most bytes for a text to embed that is longer than `batch_size`, beyond `taken`, {device name: bytes}.

    Empty where every text finds its memory there. What such a text takes stays until the engine is closed.
    """
    n = num_ctx_of(config)
    if executor is None or n <= config.batch_size:
        return {}
    try:
        needed = executor.measure_batch(n)
    except NoMemoryError:  # its mask alone is more than there is: it will be refused, and a shorter one takes the rest
        return {LONG_TEXTS: available_bytes()}
    more = sum(max(0, nbytes - taken.get(device, 0)) for device, nbytes in needed.items())
    return {LONG_TEXTS: more + (0 if lists_rows(backend) else mask_bytes(n, n))}
