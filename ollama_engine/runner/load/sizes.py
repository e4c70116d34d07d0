"""Sizes of a model's parts, from its file and the options; nothing is loaded for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ShapeError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.device.placement_plan import LayerSizes, ModelSizes
from ollama_engine.ml.gguf.gguf_file import IMAGE_PARTS, GGUFFile
from ollama_engine.ml.graph.backend import MAX_NODES_LIMIT, Backend
from ollama_engine.ml.weights.weight_plan import OUTPUT, TIED, block_of_tensor, is_expert, is_output
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import (
    EmbedsImages,
    FitsContext,
    ImageTower,
    Model,
    TextEncoder,
    known_names,
    model_class,
    ties_output,
)
from ollama_engine.runner.load.memory_plan import batch_size_of, cells_of, layer_cache, num_ctx_of, plan_masks
from ollama_engine.runner.load.projector import known_metadata
from ollama_engine.runner.load.vision import reads_media, traits_of
from ollama_engine.runner.media.encoder import ImageMemory, measure_images

__all__ = ["LOGIT_ROWS", "declared", "graph_bytes", "is_encoder", "max_nodes", "model_sizes", "tower_memory"]

LOGIT_ROWS = 32
"""Most rows of logits of a step; more (all rows of a prompt) take several steps."""

NODES_PER_WEIGHT = 32
"""Most tensors of a graph, for each tensor of the file; llama needs about 4."""

ROWS_ALIVE = 5
"""Results of a graph that live at once, each as wide as its widest matrix: on the files that were measured 2 to 4."""


def max_nodes(gguf: GGUFFile) -> int:
    """Most nodes that a graph of this model may have."""
    return int(min(MAX_NODES_LIMIT, max(2048, NODES_PER_WEIGHT * len(gguf.tensors))))


@contextmanager
def declared(gguf: GGUFFile) -> Iterator[tuple[Model | None, Backend]]:
    """The model with tensors that have no memory, to ask it for sizes, and the backend, of the CPU, that it is on.

    None for a model that computes with weights while it is made. Raises ModelFormatError, UnsupportedModelError.
    """
    metadata = known_metadata(gguf)
    factory = model_class(metadata.architecture)
    params = BackendParams(threads=1, gpu_layers=0)
    with Backend(params, max_nodes=max_nodes(gguf)) as backend, Weights(backend, gguf, repack=False) as weights:
        weights.declare()
        model: Model | None = None
        with suppress(ShapeError):
            model = factory(metadata, known_names(gguf.architecture, weights))
        yield model, backend


def is_encoder(model: Model) -> bool:
    """Whether the model keeps no keys and values."""
    return isinstance(model, TextEncoder | EmbedsImages)


def tower_memory(model: Model | None, backend: Backend, config: EngineConfig) -> ImageMemory | None:
    """What the largest image takes, from graphs that are built for it and not computed; `config` has its num_ctx.

    Graphs are those of the CPU. None for a model that reads no images.
    """
    if model is None:
        return None
    if isinstance(model, FitsContext):
        model.fit_context(num_ctx_of(config))
    tower: ImageTower | None = model.image_tower if isinstance(model, EmbedsImages) else reads_media(model)
    if tower is None:
        return None
    return measure_images(backend, tower, lambda ctx, out: None)


def model_sizes(
    gguf: GGUFFile, model: Model | None, config: EngineConfig, image: ImageMemory | None, *, flash_attention: bool
) -> ModelSizes:
    """Bytes of the parts. Those of text graphs are estimates on the safe side; `config` has its num_ctx.

    `image`: what `tower_memory` says.
    """
    sizes = {info.name: info.nbytes for info in gguf.tensors.values()}
    in_layers = [name for name in sizes if block_of_tensor(name) is not None]
    n_layers = 1 + max((block_of_tensor(name) or 0 for name in in_layers), default=-1)
    weights, experts = [0] * n_layers, [0] * n_layers
    for name in in_layers:
        (experts if is_expert(name) else weights)[block_of_tensor(name) or 0] += sizes[name]
    cache = _cache(model, config, n_layers)
    tied = OUTPUT not in sizes and ties_output(model_class(known_metadata(gguf).architecture))
    output = sum(sizes[name] for name in sizes if is_output(name))
    vision = sum(sizes[name] for name in sizes if name.startswith(IMAGE_PARTS))
    return ModelSizes(
        layers=tuple(map(LayerSizes, weights, experts, cache)),
        output=output + (sizes.get(TIED, 0) if tied else 0),
        tied=tied,
        vision=vision,
        input=sum(sizes.values()) - sum(weights) - sum(experts) - output - vision,
        graph=graph_bytes(gguf, model, config, flash_attention=flash_attention),
        output_graph=4 * 2 * max(LOGIT_ROWS, config.parallel) * _widest(gguf, "output", "token_embd"),
        # A device gets a copy of the constants. Without a model that can be asked, as much as the weights.
        vision_graph=vision if image is None else image.graph + image.constants,
        offload=max((sizes[name] for name in in_layers), default=0),
    )


def _cache(model: Model | None, config: EngineConfig, n_layers: int) -> list[int]:
    cache = [0] * n_layers
    if model is not None and not is_encoder(model):
        for number, layer in enumerate(model.cache_layers[:n_layers]):
            cache[number] = layer_cache(layer, model, config)
    return cache


def graph_bytes(gguf: GGUFFile, model: Model | None, config: EngineConfig, *, flash_attention: bool) -> int:
    """Bytes that the largest graph takes on a device, without its logits: results, masks, scores of attention."""
    traits = None if model is None else traits_of(model)
    # Texts to embed fill batches beyond num_ctx.
    rows = max(config.batch_size, 0 if traits is None else traits.largest_group)
    used = known_metadata(gguf).u32("expert_used_count", 1)
    widest = max(_widest(gguf, "blk."), used * _widest(gguf, "blk.", experts=True))
    masks, cells = 0, rows
    if model is not None and is_encoder(model):
        rows = cells = max(rows, num_ctx_of(config))
        masks = 2 * rows * rows
    elif model is not None:
        masks = plan_masks(model, config)
        texts = (layer for layer in model.cache_layers if layer.attends and not layer.image_rows)
        cells = max((cells_of(layer, model, config) for layer in texts), default=0)
    scores = 0 if flash_attention else 2 * 4 * _heads(gguf) * min(rows, batch_size_of(config)) * cells
    return 4 * ROWS_ALIVE * rows * widest + masks + scores


def _heads(gguf: GGUFFile) -> int:
    """Most heads of a layer; 0 where the file does not say."""
    value = gguf.metadata.get(f"{gguf.architecture}.attention.head_count", 0)
    return value if isinstance(value, int) else max(map(int, value), default=0)  # type: ignore[arg-type]


def _widest(gguf: GGUFFile, *prefixes: str, experts: bool = False) -> int:
    """The longest row that a matrix of these names makes."""
    return max((info.shape[1] for info in gguf.tensors.values() if info.name.startswith(prefixes)
                and len(info.shape) > 1 and is_expert(info.name) == experts), default=0)  # fmt: skip
