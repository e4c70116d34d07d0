"""The contents of vision models' files, written down a second time: names by replacement, numbers by loops.

Deliberately unlike the converters, which declare one tensor after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Named = dict[str, Array]

TEXT = (
    ("language_model.", ""), ("model.embed_tokens", "token_embd"), ("lm_head", "output"), ("model.layers", "blk"),
    ("model.norm", "output_norm"), ("self_attn.o_proj", "attn_output"), ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("input_layernorm", "attn_norm"),
)  # fmt: skip
AFTER_ATTENTION = (("post_attention_layernorm", "ffn_norm"),)
QWEN3VL = (
    ("model.visual.", "v."), ("model.language_model.", "model."), ("v.blocks", "v.blk"), ("attn.proj", "attn_out"),
    ("patch_embed.proj", "patch_embed"), ("deepstack_merger_list", "deepstack_merger"),
    ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate.weight", "ffn_gate_inp.weight"), *TEXT, *AFTER_ATTENTION,
)  # fmt: skip
CLIP = (
    ("v.vision_model.", "v."), ("v.embeddings.", "v."), ("v.encoder.layers", "v.blk"), ("out_proj", "o_proj"),
    ("self_attn.", "attn_"), ("attn_q_proj", "attn_q"), ("attn_k_proj", "attn_k"), ("attn_v_proj", "attn_v"),
    ("attn_o_proj", "attn_output"), *TEXT, *AFTER_ATTENTION,
)  # fmt: skip
INTERNVL = (
    ("vision_tower.", "v."), ("v.embeddings.", "v."), ("v.cls_token", "v.class_embedding.weight"),
    ("v.patch_embeddings.projection", "v.patch_embedding"), ("v.position_embeddings", "v.position_embedding.weight"),
    ("v.encoder.layer", "v.blk"), ("layernorm_before", "layer_norm1"), ("layernorm_after", "layer_norm2"),
    ("lambda_1", "ls1.weight"), ("lambda_2", "ls2.weight"), ("attention.projection_layer", "attn_output"),
    ("attention.q_proj", "attn_q"), ("attention.k_proj", "attn_k"), ("attention.v_proj", "attn_v"),
    ("multi_modal_projector.layer_norm", "mm.model.mlp.0"),
    ("multi_modal_projector.linear_1", "mm.model.mlp.1"),
    ("multi_modal_projector.linear_2", "mm.model.mlp.3"), ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"), *TEXT, *AFTER_ATTENTION,
)  # fmt: skip
RULES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "qwen3vl": QWEN3VL, "qwen3vlmoe": QWEN3VL, "qwen35": QWEN3VL, "qwen35moe": QWEN3VL,
    "mllama": (
        ("vision_model.", "v."), ("gated_positional_embedding.embedding", "position_embd.weight"),
        ("gated_positional_embedding.tile_embedding", "tile_position_embd"),
        ("gated_positional_embedding", "position_embd"), ("tile_positional_embedding.embedding", "tile_position_embd"),
        ("tile_positional_embedding", "tile_position_embd"), ("class_embedding", "class_embd"),
        ("patch_embedding", "patch_embd"), ("layernorm_pre", "pre_ln"), ("layernorm_post", "post_ln"),
        ("global_transformer.layers", "global.blk"), ("transformer.layers", "blk"), ("mlp.fc1", "ffn_up"),
        ("mlp.fc2", "ffn_down"), ("gate_attn", "attn_gate"), ("gate_ffn", "ffn_gate"), ("cross_attn.", "cross_attn_"),
        ("multi_modal_projector", "mm.0"), *TEXT, *AFTER_ATTENTION,
    ),
    "llama4": (
        ("vision_model.", "v."), ("multi_modal_projector", "mm"), ("v.model.layers", "v.blk"),
        ("patch_embedding.linear", "patch_embedding"), ("feed_forward.router", "ffn_gate_inp"),
        ("feed_forward.shared_expert.gate_proj", "ffn_gate_shexp"), ("feed_forward.gate_proj", "ffn_gate"),
        ("feed_forward.shared_expert.up_proj", "ffn_up_shexp"), ("feed_forward.up_proj", "ffn_up"),
        ("feed_forward.shared_expert.down_proj", "ffn_down_shexp"), ("feed_forward.down_proj", "ffn_down"),
        *TEXT, *AFTER_ATTENTION,
    ),
    "mistral3": (
        ("vision_tower.transformer.layers", "v.blk"), ("vision_tower.", "v."), ("multi_modal_projector", "mm"),
        ("ln_pre", "encoder_norm"), ("attention.o_proj", "attn_output"), ("attention.q_proj", "attn_q"),
        ("attention.k_proj", "attn_k"), ("attention.v_proj", "attn_v"), ("feed_forward.gate_proj", "ffn_gate"),
        ("feed_forward.up_proj", "ffn_up"), ("feed_forward.down_proj", "ffn_down"), ("attention_norm", "attn_norm"),
        *TEXT, *AFTER_ATTENTION,
    ),
    "qwen25vl": (
        ("visual.", "v."), ("v.blocks", "v.blk"), ("norm1", "ln1"), ("norm2", "ln2"), ("attn.proj", "attn_out"),
        *TEXT, *AFTER_ATTENTION,
    ),
    "llava": (
        ("vision_tower.", "v."), ("v.embeddings.", "v."), ("pre_layrnorm", "pre_layernorm"),
        ("v.class_embedding", "v.class_embedding.weight"), ("multi_modal_projector", "mm"),
        ("image_newline", "mm.image_newline.weight"), *CLIP,
    ),
    "deepseek2-ocr": (
        ("model.sam_model.", "v.sam."), ("model.vision_model.", "v."), ("blocks.", "blk."), ("layer_norm1", "ln1"),
        ("layer_norm2", "ln2"), ("norm1", "pre_ln"), ("norm2", "post_ln"), ("attn.proj", "attn.out"),
        ("attn.rel_pos_h", "attn.pos_h.weight"), ("attn.rel_pos_w", "attn.pos_w.weight"),
        ("patch_embed.proj", "patch_embd"), ("sam.pos_embed", "sam.pos_embd.weight"),
        ("embeddings.class_embedding", "class_embd"), ("embeddings.position_embedding", "position_embd"),
        ("pre_layrnorm", "pre_ln"), ("transformer.layers", "blk"), ("self_attn.qkv_proj", "attn_qkv"),
        ("self_attn.out_proj", "attn_out"), ("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down"),
        ("model.projector.layers", "mm.model.fc"), ("model.image_newline", "v.image_newline"),
        ("model.view_seperator", "v.view_seperator"),
    ),
    "glm4": (
        ("model.visual.", "v."), ("v.merger.post_projection_norm", "mm.post_norm"), ("v.merger.proj", "mm.model.fc"),
        ("v.merger.gate_proj", "mm.gate"), ("v.merger.up_proj", "mm.up"), ("v.merger.down_proj", "mm.down"),
        ("v.downsample", "mm.patch_merger"), ("v.blocks", "v.blk"), ("norm1", "ln1"), ("norm2", "ln2"),
        ("post_layernorm", "post_ln"), ("attn.proj", "attn_out"), ("attn.qkv", "attn_qkv"),
        ("attn.q_norm", "attn_q_norm"), ("attn.k_norm", "attn_k_norm"),
        ("patch_embed.proj.bias", "patch_embd.bias"), *TEXT,
    ),
    "idefics3": (
        ("model.vision_model.", "v."), ("model.connector.modality_projection.proj", "mm.model.fc"),
        ("model.text_model.", "model."), *CLIP,
    ),
    "internvl-qwen2": INTERNVL, "internvl-qwen3": INTERNVL,
    "lfm2": (
        ("model.vision_tower.", "v."), ("model.multi_modal_projector.layer_norm", "mm.input_norm"),
        ("model.multi_modal_projector.linear_", "mm."), *CLIP,
    ),
    "gemma3": (
        ("vision_tower.embeddings.", "v."), ("vision_tower.encoder.layers", "v.blk"), ("vision_tower.", "v."),
        ("multi_modal_projector", "mm"), ("_projection_weight", "_projection.weight"), ("out_proj", "o_proj"),
        ("q_norm", "attn_q_norm"), ("k_norm", "attn_k_norm"), ("self_attn.attn_", "attn_"),
        ("pre_feedforward_layernorm", "ffn_norm"), ("post_feedforward_layernorm", "post_ffw_norm"),
        ("post_attention_layernorm", "post_attention_norm"), *TEXT,
    ),
    "gemma4": (
        ("model.vision_tower.", "v."), ("model.embed_vision.embedding_projection", "mm.input_projection"),
        ("v.patch_embedder.input_proj", "v.patch_embd"),
        ("v.patch_embedder.position_embedding_table", "v.position_embd.weight"), ("v.encoder.layers", "v.blk"),
        (".linear.", "."), ("q_norm", "attn_q_norm"), ("k_norm", "attn_k_norm"), ("self_attn.attn_", "attn_"),
        ("post_feedforward_layernorm", "post_ffw_norm"), ("post_attention_layernorm", "post_attention_norm"),
        ("layer_scalar", "layer_output_scale.weight"), ("pre_feedforward_layernorm", "ffn_norm"),
        ("language_model.", ""), *TEXT,
    ),
}  # fmt: skip


def pairs(rows: Array, heads: int) -> Array:
    """Rows j and j + half of each head become neighbours."""
    out, size = np.empty_like(rows), len(rows) // heads
    for head in range(heads):
        for j in range(size // 2):
            out[head * size + 2 * j] = rows[head * size + j]
            out[head * size + 2 * j + 1] = rows[head * size + size // 2 + j]
    return out


def _plain(name: str, values: Array, config: Mapping[str, Any]) -> Named:
    return {name: values}


def _text_pairs(name: str, values: Array, config: Mapping[str, Any]) -> Named:
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    part = name.split(".")[-2]
    if not name.startswith("blk.") or part not in heads:
        return {name: values}
    return {name: pairs(values, config["text_config"][heads[part]])}


def _mllama(name: str, values: Array, config: Mapping[str, Any]) -> Named:
    if name == "v.position_embd.gate":
        return {name: 1 - np.tanh(values), "v.tile_position_embd.gate": np.tanh(values)}
    if name.startswith("v.") and name.endswith("gate"):
        return {name: np.tanh(values)}
    if name.startswith("v.") and name.endswith(("attn_q.weight", "attn_k.weight")):
        return {name: pairs(values, config["vision_config"]["attention_heads"])}
    return _text_pairs(name, values, config)


def _llama4(name: str, values: Array, config: Mapping[str, Any]) -> Named:
    layer = name.removesuffix("feed_forward.experts.gate_up_proj")
    if layer != name:
        both = np.stack([expert.T for expert in values])
        hidden = both.shape[1] // 2
        return {f"{layer}ffn_gate_exps.weight": both[:, :hidden], f"{layer}ffn_up_exps.weight": both[:, hidden:]}
    layer = name.removesuffix("feed_forward.experts.down_proj")
    if layer != name:
        return {f"{layer}ffn_down_exps.weight": np.stack([expert.T for expert in values])}
    return {name: values}


def _qwen25vl(name: str, values: Array, config: Mapping[str, Any]) -> Named:
    if name == "v.patch_embed.proj.weight":
        return {f"v.patch_embd_{frame}.weight": values[:, :, frame] for frame in range(2)}
    if ".attn.qkv." in name:
        n = len(values) // 3
        return {name.replace("attn.qkv", f"attn_{part}"): values[i * n : (i + 1) * n] for i, part in enumerate("qkv")}
    return {name: values}


def _qwen3vl(name: str, values: Array, config: Mapping[str, Any]) -> Named:
    if name == "v.patch_embed.weight":
        return {name: np.concatenate(list(values))}
    layer, found, part = name.partition("mlp.experts.")
    if found and part == "gate_up_proj":
        gate, up = (np.stack(half) for half in zip(*(np.split(expert, 2) for expert in values), strict=True))
        return {f"{layer}ffn_gate_exps.weight": gate, f"{layer}ffn_up_exps.weight": up}
    if found and part == "down_proj":
        return {f"{layer}ffn_down_exps.weight": values}
    return _qwen25vl(name, values, config)


def _gemma3(name: str, values: Array, config: Mapping[str, Any]) -> Named:
    if name.startswith("v.head."):
        return {}
    shifted = name == "mm.mm_soft_emb_norm.weight" or (name.endswith("norm.weight") and not name.startswith("v."))
    return {name: values + np.float32(1) if shifted else values}


def _gemma4(name: str, values: Array, config: Mapping[str, Any]) -> Named:
    """Norms of the tower and its last projection have names of their own; patches become kernels, channels first."""
    if not name.startswith("v."):
        return {name: values}
    if name == "v.patch_embd.weight":
        return {name: _kernels(values)}
    names = {"attn_norm": "ln1", "ffn_norm": "ln2", "post_attention_norm": "attn_post_norm",
             "post_ffw_norm": "ffn_post_norm", "attn_output": "attn_out"}  # fmt: skip
    return {".".join(names.get(part, part) for part in name.split(".")): values}


def _internvl(name: str, values: Array, config: Mapping[str, Any]) -> Named:
    """Without the dimensions of 1 that come first."""
    return {name: values.squeeze() if name in ("v.class_embedding.weight", "v.position_embedding.weight") else values}


def _kernels(values: Array) -> Array:
    """Rows of a patch's numbers, channels last, as kernels with channels first."""
    side = int((values.shape[1] // 3) ** 0.5)
    return np.stack([row.reshape(side, side, 3).transpose(2, 0, 1) for row in values])


NUMBERS: Mapping[str, Callable[[str, Array, Mapping[str, Any]], Named]] = {
    "mllama": _mllama,
    "llama4": _llama4,
    "mistral3": _text_pairs,
    "llava": _text_pairs,
    "idefics3": _text_pairs,
    **dict.fromkeys(("internvl-qwen2", "internvl-qwen3"), _internvl),
    "lfm2": lambda name, values, config: {name: _kernels(values) if name == "v.patch_embedding.weight" else values},
    "qwen25vl": _qwen25vl,
    **dict.fromkeys(("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"), _qwen3vl),
    "gemma3": _gemma3,
    "gemma4": _gemma4,
    "glm4": _qwen25vl,
    "deepseek2-ocr": _plain,
}


def expected_tensors(architecture: str, weights: Mapping[str, Array], config: Mapping[str, Any]) -> Named:
    """Tensors by GGUF name, in numpy's order of dimensions."""
    tensors: Named = {}
    for name, values in weights.items():
        for old, new in RULES[architecture]:
            name = name.replace(old, new)  # noqa: PLW2901
        tensors |= NUMBERS[architecture](name, values, config)
    return tensors
