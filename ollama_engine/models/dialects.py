"""Translates GGUF files of other converters to the names of llama.cpp's converter, which models use.

The differences are data: another `general.architecture`, other keys below it, other tensor names, and values that the
other engine hard-codes. Models see none of them. Two differences are handled elsewhere: `nn.read_rope` reads shorter
names of YaRN's constants, and `llama` mends experts with exchanged names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gating import SIGMOID
from ollama_engine.ml.gguf.metadata import Metadata, MetadataValue

__all__ = ["known_names", "known_values"]

T = TypeVar("T")
Values = Mapping[str, MetadataValue]


def _nothing(values: Values) -> Values:
    return {}


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The differences between files of one `general.architecture` and what its model reads."""

    architecture: str
    """The name under which the model is registered."""
    embeds: str = ""
    """The name where a file says how hidden states are pooled; empty for the same one."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Foreign key -> known key, both without the architecture's prefix. A file with both keeps the known one."""
    tensors: tuple[tuple[str, str], ...] = ()
    """(regular expression of a whole name, replacement)."""
    missing: Callable[[Values], Values] = _nothing
    """Keys under their names -> known ones that their engine hard-codes; a value in the file wins."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Known key -> regular expression of the tensors whose rows it counts. The tensors win: some files lack the key, or
    have another number there."""


def _gpt_oss(values: Values) -> Values:
    return {"rope.scaling.type": "yarn"} if "rope.scaling.factor" in values else {}


GEMMA3_STRETCHED = (34, 48, 62)
"""Layers of the models whose global positions are divided by 8: 4B, 12B and 27B."""


def _gemma3(values: Values) -> Values:
    """Ollama's vision files lack the epsilon, and all its files lack the rotary scaling of global layers."""
    keys: dict[str, MetadataValue] = {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}
    bases = {"rope.local.freq_base", "rope.global.freq_base"}
    ollama = bases & set(values) or ("vision.block_count" in values and "rope.freq_base_swa" not in values)
    if ollama and "rope.scaling.factor" not in values and values.get("block_count") in GEMMA3_STRETCHED:
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    return keys


LATENT = {"moe_latent_size": r"blk\.\d+\.ffn_latent_(in|down)\.weight"}
OUTPUT = (r"(blk\.\d+)\.attn_out\.weight", r"\1.attn_output.weight")
"""Ollama's name in GLM-OCR; its readers of latent attention know it, too."""

DEEPSEEK_OCR = (
    (r"s\.blk\.(\d+)\.norm1\.(.*)", r"v.sam.blk.\1.pre_ln.\2"),
    (r"s\.blk\.(\d+)\.norm2\.(.*)", r"v.sam.blk.\1.post_ln.\2"),
    (r"s\.blk\.(\d+)\.attn\.proj\.(.*)", r"v.sam.blk.\1.attn.out.\2"),
    (r"s\.blk\.(\d+)\.attn\.rel_pos_([hw])", r"v.sam.blk.\1.attn.pos_\2.weight"),
    (r"s\.position_embd", r"v.sam.pos_embd.weight"),
    (r"s\.(.*)", r"v.sam.\1"),
    (r"v\.pre_layrnorm\.(.*)", r"v.pre_ln.\1"),
    (r"v\.blk\.(\d+)\.layer_norm([12])\.(.*)", r"v.blk.\1.ln\2.\3"),
    (r"v\.blk\.(\d+)\.self_attn\.(qkv|out)_proj\.(.*)", r"v.blk.\1.attn_\2.\3"),
    (r"v\.blk\.(\d+)\.mlp\.fc1\.(.*)", r"v.blk.\1.ffn_up.\2"),
    (r"v\.blk\.(\d+)\.mlp\.fc2\.(.*)", r"v.blk.\1.ffn_down.\2"),
    (r"mm\.layers\.(.*)", r"mm.model.fc.\1"),
    (r"mm\.(image_newline|view_seperator)", r"v.\1"),
)

QWEN3VL = ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe")
QWEN3VL_KEYS = {
    "mrope_sections": "rope.dimension_sections",
    "rope.mrope_section": "rope.dimension_sections",
    "vision.shortest_edge": "vision.min_pixels",
    "vision.longest_edge": "vision.max_pixels",
}

DIALECTS: Mapping[str, Dialect] = {
    # Ollama's name for gpt-oss.
    "gptoss": Dialect(
        architecture="gpt-oss",
        tensors=(
            (r"(blk\.\d+)\.attn_out\.(weight|bias)", r"\1.attn_output.\2"),
            (r"(blk\.\d+)\.attn_sinks", r"\1.attn_sinks.weight"),
            (r"(blk\.\d+)\.ffn_norm\.weight", r"\1.post_attention_norm.weight"),
        ),
        missing=_gpt_oss,
    ),
    # rope.scaling.attn_factor is YaRN's whole magnitude, a part of which ggml applies by itself.
    "olmo3": Dialect(architecture="olmo2", keys={"rope.scaling.attn_factor": "rope.scaling.yarn_attn_factor"}),
    "gemma3": Dialect(
        architecture="gemma3",
        embeds="gemma-embedding",
        keys={"rope.local.freq_base": "rope.freq_base_swa", "rope.global.freq_base": "rope.freq_base"},
        tensors=((r"dense\.0\.weight", "dense_2.weight"), (r"dense\.1\.weight", "dense_3.weight")),
        missing=_gemma3,
    ),
    # Ollama's reader, which knows llama.cpp's names as well.
    "gemma4": Dialect(
        architecture="gemma4",
        keys={"rope.local.freq_base": "rope.freq_base_swa"},
        tensors=(
            (r"(blk\.\d+)\.attn_post_norm\.weight", r"\1.post_attention_norm.weight"),
            (r"(blk\.\d+)\.ffn_pre_norm\.weight", r"\1.ffn_norm.weight"),
            (r"(blk\.\d+)\.ffn_gate_inp\.per_expert_scale", r"\1.ffn_down_exps.scale"),
            (r"(blk\.\d+)\.layer_scalar(\.weight)?", r"\1.layer_output_scale.weight"),
        ),
    ),
    "deepseek2": Dialect(architecture="deepseek2", tensors=(OUTPUT,)),
    # llama.cpp's converter writes how much of a head rotates in latent attention, which there is none of: 0.
    "deepseek2-ocr": Dialect(architecture="deepseek2-ocr", keys={"rope.dimension_count": "rope.dimension_count_mla"}),
    # Ollama's name for it; its engine knows the rest by heart.
    "deepseekocr": Dialect(
        architecture="deepseek2-ocr",
        keys={
            "vision.head_count": "vision.attention.head_count",
            **{f"sam.{key}": f"vision.sam.{key}" for key in ("block_count", "embedding_length", "head_count")},
        },
        tensors=DEEPSEEK_OCR,
        missing=lambda values: {"attention.layer_norm_rms_epsilon": 1e-6, "vision.window_size": 14},
        rows={
            "expert_feed_forward_length": r"blk\.\d+\.ffn_gate_exps\.weight",
            "expert_shared_feed_forward_length": r"blk\.\d+\.ffn_gate_shexp\.weight",
        },
    ),
    # Ollama's name for GLM-4.7-Flash, whose keys with and without `_mla` have each other's meaning.
    "glm4moelite": Dialect(
        architecture="deepseek2",
        keys={
            "attention.key_length": "attention.key_length_mla",
            "attention.key_length_mla": "attention.key_length",
            "attention.value_length": "attention.value_length_mla",
            "attention.value_length_mla": "attention.value_length",
        },
        tensors=(OUTPUT,),
        missing=lambda values: {"expert_gating_func": SIGMOID, "expert_weights_norm": True},
    ),
    # Ollama's name for GLM-OCR.
    "glmocr": Dialect(
        architecture="glm4",
        keys={
            "rope.mrope_section": "rope.dimension_sections",
            "vision.attention.layer_norm_rms_epsilon": "vision.attention.layer_norm_epsilon",
        },
        tensors=(
            OUTPUT,
            (r"(blk\.\d+)\.post_attn_norm\.weight", r"\1.post_attention_norm.weight"),
            (r"(blk\.\d+)\.post_ffn_norm\.weight", r"\1.post_ffw_norm.weight"),
        ),
    ),
    # Ollama's reader, for the size of a head.
    "llama4": Dialect(architecture="llama4", keys={"attention.head_dim": "attention.key_length"}),
    # Ollama's first files have the size before it is adjusted (block_auto_adjust_ff_dim).
    "lfm2": Dialect(architecture="lfm2", rows={"feed_forward_length": r"blk\.\d+\.ffn_gate\.weight"}),
    # Ollama's files lack the size of the vector that experts read.
    "nemotron_h_moe": Dialect(architecture="nemotron_h_moe", rows=LATENT),
    # Ollama's name for a file that has parts for images and audio, too.
    "nemotron_h_omni": Dialect(architecture="nemotron_h_moe", rows=LATENT),
    # Ollama's reader and its converter.
    **{name: Dialect(architecture=name, keys=QWEN3VL_KEYS) for name in QWEN3VL},
    # llama.cpp's, for a model that is known under Ollama's name: its files have both parts.
    "qwen2vl": Dialect(architecture="qwen25vl", keys={"rope.dimension_sections": "rope.mrope_section"}),
}


TOKEN_TYPES = "tokenizer.ggml.token_type_count"
"""Rows of BERT's token_types."""
TOKENS = "tokenizer.ggml.tokens"
"""The vocabulary."""
BOS = "tokenizer.ggml.bos_token_id"
"""The token that begins a text."""


def known_values(values: Values, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Metadata:
    """The metadata of a model under known names, without keys of the tokenizer.

    Except a size of the model, and the vocabulary and BOS where the model has a vision part. `shapes` are those of the
    file's tensors, which tell some sizes.

    Raises ModelFormatError when `general.architecture` is missing.
    """
    theirs = Metadata(values).architecture
    dialect = DIALECTS.get(theirs, Dialect(architecture=theirs))
    own = {key.removeprefix(f"{theirs}."): values[key] for key in values if key.startswith((f"{theirs}.", "xielu."))}
    if own.get("rope.scaling.type") == "":  # Ollama writes "" where the config has no scaling
        del own["rope.scaling.type"]
    renamed = {dialect.keys[key]: value for key, value in own.items() if key in dialect.keys}
    kept = {key: value for key, value in own.items() if key not in dialect.keys}
    whole = {**dialect.missing(own), **renamed, **kept, **_counted(dialect, shapes or {})}
    # Models that read images look up the tokens that stand around them.
    kept_keys = (TOKEN_TYPES, TOKENS, BOS) if "vision.block_count" in own else (TOKEN_TYPES,)
    general = {key: values[key] for key in values if key.startswith("general.") or key in kept_keys}
    known = dialect.embeds if dialect.embeds and own.get("pooling_type") else dialect.architecture
    return Metadata({**general, "general.architecture": known, **{f"{known}.{k}": v for k, v in whole.items()}})


def _counted(dialect: Dialect, shapes: Mapping[str, tuple[int, ...]]) -> Values:
    """The keys of `dialect.rows`, where the file has such tensors."""
    matrices = {name: shape[1] for name, shape in shapes.items() if len(shape) in (2, 3)}
    rows = {
        key: next((n for name, n in matrices.items() if re.fullmatch(pattern, name)), None)
        for key, pattern in dialect.rows.items()
    }
    return {key: n for key, n in rows.items() if n is not None}


def known_names(architecture: str, weights: Mapping[str, T]) -> Mapping[str, T]:
    """The `weights` of a file with this `general.architecture`, under the names that its model knows.

    Raises ModelFormatError when two tensors would have one name.
    """
    rules = DIALECTS[architecture].tensors if architecture in DIALECTS else ()
    if not rules:
        return weights
    named: dict[str, T] = {}
    for name, weight in weights.items():
        known = next((re.sub(p, new, name) for p, new in rules if re.fullmatch(p, name)), name)
        if known in named:
            raise ModelFormatError(f"tensor {name} is {known} under another name, and the file has both")
        named[known] = weight
    return named
