"""The types of all tensors of a quantized file, decided before the first is read."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ollama_engine.convert.late_warnings import warn
from ollama_engine.convert.quant.presets import (
    FALLBACK,
    Place,
    Preset,
    output_type,
    tensor_kind,
    wanted_type,
)
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import IMAGE_PARTS, TensorInfo
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.types import block_of

__all__ = ["LayoutFacts", "in_file_order", "read_facts", "target_types"]

logger = logging.getLogger(__name__)

FLOATS = ("f32", "f16", "bf16")

# llama.cpp's list: small tensors, and those that no kernel reads in fewer bits.
NEVER = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight",
    "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight",
    "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
    "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
    "attn_rel_b.weight", ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd",
    ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
NEVER_EXACTLY = ("position_embd.weight", "token_types.weight")


@dataclass(frozen=True)
class LayoutFacts:
    """Facts about a model that the quantization rules ask for."""

    architecture: str
    n_layer: int
    n_gqa: int
    n_expert: int
    is_70b: bool


def read_facts(metadata: Metadata) -> LayoutFacts:
    """Raises ModelFormatError for metadata of another kind. Missing counts are 0: the rules then see no layers."""
    n_layer = metadata.u32("block_count", 0)
    n_head = _first(metadata, "attention.head_count", 0)
    n_head_kv = _first(metadata, "attention.head_count_kv", n_head)
    architecture = metadata.architecture
    grouped = architecture == "llama" and n_head != n_head_kv
    return LayoutFacts(
        architecture=architecture,
        n_layer=n_layer,
        n_gqa=n_head // n_head_kv if n_head_kv else 0,
        n_expert=metadata.u32("expert_count", 0),
        is_70b=(n_layer == 80 and (grouped or architecture in ("qwen2", "olmo", "deci")))
        or (n_layer == 68 and architecture == "jais2"),
    )


def _first(metadata: Metadata, name: str, default: int) -> int:
    """A count, or that of the first layer where each has its own."""
    if name not in metadata:
        return default
    value = metadata.values[metadata.key(name)]
    return int(value[0]) if isinstance(value, np.ndarray) else metadata.u32(name)


def in_file_order(tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    """llama.cpp's order, by which the rules count: what belongs to no layer, then layer by layer, by name."""

    def key(tensor: TensorInfo) -> tuple[int, bytes]:
        return _layer(tensor.name), tensor.name.encode("utf-8", "surrogateescape")

    return sorted(tensors, key=key)


def _layer(name: str) -> int:
    match = re.match(r"blk\.(\d+)\.", name)
    return int(match[1]) if match else -1


def target_types(
    tensors: Sequence[TensorInfo], preset: Preset, facts: LayoutFacts, *, has_imatrix: bool
) -> dict[str, str]:
    """The type of each tensor by name; `tensors` are in file order.

    Raises ModelFormatError where experts lie outside of the layers that the metadata count.
    """
    kinds = {tensor.name: tensor_kind(tensor.name) for tensor in tensors}
    n_values = sum(kind == "attn_v" for kind in kinds.values())
    tied = "output.weight" not in kinds
    seen: Counter[str] = Counter()
    types = {}
    fallbacks: list[tuple[TensorInfo, str]] = []
    for tensor in tensors:
        kind = kinds[tensor.name]
        types[tensor.name] = tensor.dtype
        if not _may_change(tensor):
            continue
        if preset.base in FLOATS:
            types[tensor.name] = preset.base
            continue
        if kind == "output" or (tied and kind == "token_embd"):
            whole = tensor.shape[0] % block_of(preset.base)[0] == 0
            dtype = output_type(preset, facts.architecture, whole_blocks=whole)
        else:
            count = n_values if kind == "attn_v" else facts.n_layer
            index = _index(tensor.name, kind, seen[kind], facts)
            place = Place(index, count, facts.n_gqa, facts.n_expert, has_imatrix, facts.is_70b)
            matrices = tensor.shape[2] if len(tensor.shape) > 2 else 1
            dtype = wanted_type(preset, kind, place, facts.architecture, n_matrices=matrices)
            seen[kind] += 1
        types[tensor.name] = _fitting(dtype, tensor.shape[0])
        fallbacks += [(tensor, dtype)] if types[tensor.name] != dtype else []
    if fallbacks:
        tensor, dtype = fallbacks[0]
        warn(
            logger,
            "%d of %d tensors have rows that do not divide into blocks, and take the next larger type; %s with rows of "
            "%d becomes %s instead of %s", len(fallbacks), len(tensors), tensor.name, tensor.shape[0],
            types[tensor.name], dtype,
        )  # fmt: skip
    return types


def _index(name: str, kind: str, seen: int, facts: LayoutFacts) -> int:
    """How many came before; experts do not come in the order of layers, so there the name counts."""
    if kind != "ffn_down" or facts.n_expert <= 1:
        return seen
    layer = _layer(name)
    if not 0 <= layer < facts.n_layer:
        raise ModelFormatError(f"tensor {name} belongs to no layer of 0 to {facts.n_layer - 1}")
    return layer


def _may_change(tensor: TensorInfo) -> bool:
    """Matrices of weights, but for those that must stay as they are.

    MXFP4 weights were published as such; what reads images is small, and Ollama leaves it alone too.
    """
    name = tensor.name
    if name.startswith(IMAGE_PARTS):
        return False
    is_matrix = any(n > 1 for n in tensor.shape[1:])
    if not is_matrix or not name.endswith("weight") or name in NEVER_EXACTLY or tensor.dtype == "mxfp4":
        return False
    return not any(part in name for part in NEVER)


def _fitting(preferred: str, length: int) -> str:
    """The type, or one whose blocks rows of this length divide into."""
    for dtype in (preferred, FALLBACK.get(preferred, preferred)):
        if length % block_of(dtype)[0] == 0:
            return dtype
    return "f16"
