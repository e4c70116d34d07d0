"""GLM-4 of 2025, GLM-OCR, GLM-4.5 and 4.6 -> `general.architecture` = glm4, glm4moe.

GLM-4 rotates neighbours already: no rows are moved. GLM-OCR, too, but by positions of several axes, by which ggml turns
halves of heads only: so its neighbours become halves. Its encoder has the names of Ollama's converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes, TensorMap, layered, linear
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    FFN_NORM,
    LAYER,
    MLP,
    QK_NORM,
    decoder,
    experts,
    has_experts,
    is_dense,
    norm,
    only,
    rotated_part,
    shared_expert,
    sizes,
)
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.next_tokens import HEAD, N_NEXT, behind, counted_on, next_token_keys, placed_behind
from ollama_engine.convert.qwen25vl import FRAMES, PATCHES, pixel_limits
from ollama_engine.convert.rope import mrope_sections, rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import unpair_heads
from ollama_engine.convert.vision import affine, expect, image_part, matrix, rope_base
from ollama_engine.ml.gguf.gating import SIGMOID

__all__ = ["ARCHITECTURES"]


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu"})
    return {"rope.dimension_count": rotated_part(config, sizes["head_dim"], 0.5), **rope_keys(config)}


def _ocr_sizes(config: Config) -> dict[str, int]:
    plain = sizes(config)
    n_rot = rotated_part(config, plain["head_dim"])
    return {**plain, "n_rot": n_rot, "n_embd_twice": 2 * plain["n_embd"], N_NEXT: config.whole(N_NEXT, default=0)}


def _ocr_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu"})
    return {
        "rope.dimension_count": sizes["n_rot"],
        "rope.dimension_sections": [*mrope_sections(config, sizes["n_rot"] // 2, (8, 12, 12)), 0],
        **rope_keys(config),
        **next_token_keys(sizes),
    }


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(vision, "temporal_patch_size", FRAMES, default=FRAMES)
    return {"vision.temporal_patch_size": FRAMES, "vision.rope.freq_base": rope_base(vision)}


def _unpaired(tensor: TensorMap) -> TensorMap:
    heads = {"attn_q": "n_head", "attn_k": "n_head_kv"}.get(tensor.target.split(".")[2])
    return tensor if heads is None else replace(tensor, transform=unpair_heads(heads, "n_rot"))


def _sparse_sizes(config: Config) -> dict[str, int]:
    plain = sizes(config)
    shared = config.whole("n_shared_experts", default=1) * plain["n_ff_exp"]
    return {
        **plain, "n_expert": config.whole("n_routed_experts", "num_local_experts"), "n_ff_shexp": shared,
        "n_embd_twice": 2 * plain["n_embd"], N_NEXT: config.whole(N_NEXT, default=0),
    }  # fmt: skip


def _sparse_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"n_group": 1, "topk_group": 1})
    return {
        **_more_keys(config, sizes),
        **next_token_keys(sizes),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_count": sizes["n_ff_shexp"] // sizes["n_ff_exp"],
        "leading_dense_block_count": config.whole("first_k_dense_replace", default=0),
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": float(config.number("routed_scaling_factor", default=1.0)),
        "expert_weights_norm": bool(config.get("norm_topk_prob", default=True)),
    }


CORRECTION = TensorMap(BLOCK + "exp_probs_b.bias", LAYER + "mlp.gate.e_score_correction_bias", ("n_expert",))
SPARSE_ATTENTION = (
    ATTN_NORM,
    *ATTENTION,
    *(replace(tensor, optional=True) for tensor in QK_NORM),
    norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
)
MIXTURE = (*experts(has_experts), *only(has_experts, CORRECTION, *shared_expert("mlp.shared_experts")))
GLM4MOE = decoder(
    "glm4moe",
    ("Glm4MoeForCausalLM",),
    (*SPARSE_ATTENTION, *only(is_dense, *MLP), *MIXTURE),
    sizes=_sparse_sizes,
    keys=(
        *(key for key in DECODER_KEYS if key.name != "expert_count"),
        Key("expert_count", "u32", ("n_routed_experts", "num_local_experts")),
    ),
    more_keys=_sparse_keys,
    pre_names=("glm4",),
)

DENSE = (
    ATTN_NORM,
    *ATTENTION,
    norm(BLOCK + "post_attention_norm", LAYER + "post_self_attn_layernorm"),
    FFN_NORM,
    *linear(BLOCK + "ffn_up", LAYER + "mlp.gate_up_proj", "n_ff_twice", "n_embd"),
    *linear(BLOCK + "ffn_down", LAYER + "mlp.down_proj", "n_embd", "n_ff"),
    norm(BLOCK + "post_ffw_norm", LAYER + "post_mlp_layernorm"),
)
BLOCK_V, SOURCE = "v.blk.{i}.", "visual.blocks.{i}."
VISION = image_part(
    activation="silu",
    defaults={
        "depth": 24, "hidden_size": 1024, "num_heads": 16, "in_channels": 3, "intermediate_size": 4096,
        "patch_size": 14, "temporal_patch_size": FRAMES, "spatial_merge_size": 2, "rms_norm_eps": 1e-5,
    },
    keys=(
        Key("vision.spatial_merge_size", "u32", ("spatial_merge_size",)),
        Key("vision.attention.layer_norm_epsilon", "f32", ("rms_norm_eps",)),
    ),
    outer_keys=tuple(
        Key(name, "u32", (name,), required=False)
        for name in ("image_token_id", "image_start_token_id", "image_end_token_id")
    ),
    more_sizes=lambda vision, config: {
        "v_qkv": 3 * vision.whole("hidden_size"),
        "v_head_dim": vision.whole("hidden_size") // vision.whole("num_heads"),
        "v_merge": vision.whole("spatial_merge_size"),
        "v_merger_ff": vision.whole("in_channels") * config.whole("hidden_size"),  # by transformers' class
    },
    more_keys=_vision_keys,
    image_keys=pixel_limits,
    tensors=(
        *PATCHES,
        TensorMap("v.patch_embd.bias", "visual.patch_embed.proj.bias", ("v_embd",)),
        *layered(
            "v_layer",
            matrix(BLOCK_V + "ln1", SOURCE + "norm1", "v_embd"),
            *linear(BLOCK_V + "attn_qkv", SOURCE + "attn.qkv", "v_qkv", "v_embd"),
            matrix(BLOCK_V + "attn_q_norm", SOURCE + "attn.q_norm", "v_head_dim"),
            matrix(BLOCK_V + "attn_k_norm", SOURCE + "attn.k_norm", "v_head_dim"),
            *linear(BLOCK_V + "attn_out", SOURCE + "attn.proj", "v_embd", "v_embd"),
            matrix(BLOCK_V + "ln2", SOURCE + "norm2", "v_embd"),
            *linear(BLOCK_V + "ffn_gate", SOURCE + "mlp.gate_proj", "v_ff", "v_embd"),
            *linear(BLOCK_V + "ffn_up", SOURCE + "mlp.up_proj", "v_ff", "v_embd"),
            *linear(BLOCK_V + "ffn_down", SOURCE + "mlp.down_proj", "v_embd", "v_ff"),
        ),
        matrix("v.post_ln", "visual.post_layernorm", "v_embd"),
        *affine("mm.patch_merger", "visual.downsample", "n_embd", "v_embd", "v_merge", "v_merge"),
        matrix("mm.model.fc", "visual.merger.proj", "n_embd", "n_embd"),
        *affine("mm.post_norm", "visual.merger.post_projection_norm", "n_embd"),
        matrix("mm.gate", "visual.merger.gate_proj", "v_merger_ff", "n_embd"),
        matrix("mm.up", "visual.merger.up_proj", "v_merger_ff", "n_embd"),
        matrix("mm.down", "visual.merger.down_proj", "n_embd", "v_merger_ff"),
    ),
)  # fmt: skip
OCR_BLOCK = tuple(map(_unpaired, DENSE))
GLM_OCR = decoder(
    "glm4",
    ("GlmOcrForConditionalGeneration",),
    OCR_BLOCK,
    sizes=_ocr_sizes,
    more_keys=_ocr_keys,
    pre_names=("glm4",),
    llama3_rope=False,
)

ARCHITECTURES = (
    decoder("glm4", ("Glm4ForCausalLM",), DENSE, more_keys=_more_keys, pre_names=("glm4",)),
    replace(
        GLM_OCR,
        defaults={"rms_norm_eps": 1e-5},
        tensors=(*GLM_OCR.tensors, *HEAD, *placed_behind(OCR_BLOCK, behind)),
        told_by_names=counted_on,
        vision=VISION,
    ),
    replace(
        GLM4MOE,
        tensors=(*GLM4MOE.tensors, *HEAD, *placed_behind((*SPARSE_ATTENTION, *MIXTURE), behind)),
        told_by_names=counted_on,
    ),
)
