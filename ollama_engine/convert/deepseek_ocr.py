"""DeepSeek-OCR -> `general.architecture` = deepseek2-ocr: a DeepSeek V2 without latent attention, and two encoders.

All is named as in llama.cpp's two files, in one. Folders are those that DeepSeek published, and those of transformers'
class for Unlimited-OCR, which has the same parts, where no window bounds its attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Sizes, TensorMap, Vision, layered
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    FFN_NORM,
    MLP,
    decoder,
    experts,
    has_experts,
    is_dense,
    n_dense,
    only,
    rope_and_size,
    shared_expert,
    sizes,
)
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.vision import IMAGE_TOKEN, affine, colours, expect, matrix
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.ml.gguf.gating import SOFTMAX

__all__ = ["ARCHITECTURES"]

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""What the published code makes of messages ("plain"); its folder has no template."""

DEFAULTS: Mapping[str, Any] = {
    "first_k_dense_replace": 1, "moe_intermediate_size": 896, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_experts_per_tok": 6, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
}  # fmt: skip
SAM_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 1024, "patch_size": 16,
    "window_size": 14, "global_attn_indexes": [2, 5, 8, 11], "mlp_dim": 3072, "output_channels": 256,
    "downsample_channels": [512, 1024],
}  # fmt: skip
ENCODER_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 224, "patch_size": 14,
    "intermediate_size": 4096,
}  # fmt: skip
PUBLISHED = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
"""Names in DeepSeek's config.json -> transformers'."""


def _tower(config: Config, names: tuple[str, str], defaults: Mapping[str, Any], eps: float, activation: str) -> Config:
    """The config of a tower, which transformers and DeepSeek have under one of `names`."""
    vision = config.part("vision_config", {})
    found = Config(vision.mapping("width"), vision.home).mapping(names[1]) or vision.mapping(names[0])
    renamed = {PUBLISHED.get(name, name): value for name, value in found.items()}
    tower = Config(renamed, f"{vision.home}: {names[0]}").completed(defaults)
    expect(tower, "layer_norm_eps", eps, default=eps)
    expect(tower, "hidden_act", activation, default=activation)
    return tower


def _sam(config: Config) -> Config:
    sam = _tower(config, ("sam_config", "sam_vit_b"), SAM_DEFAULTS, 1e-6, "gelu")
    for name in ("use_abs_pos", "use_rel_pos"):
        expect(sam, name, True, default=True)
    return sam


def _encoder(config: Config) -> Config:
    return _tower(config, ("encoder_config", "clip-l-14-224"), ENCODER_DEFAULTS, 1e-5, "quick_gelu")


def _vision_sizes(config: Config) -> Sizes:
    sam, encoder = _sam(config), _encoder(config)
    half, out = sam.get("downsample_channels")
    n_embd, side = sam.whole("hidden_size"), sam.whole("image_size") // sam.whole("patch_size")
    if encoder.whole("hidden_size") != out:
        raise encoder.wrong(("hidden_size",), f"{out}, what SAM's tower makes", encoder.whole("hidden_size"))
    return {
        "v_layer": encoder.whole("num_hidden_layers"),
        "v_embd": out,
        "v_qkv": 3 * out,
        "v_ff": encoder.whole("intermediate_size"),
        "v_places": (encoder.whole("image_size") // encoder.whole("patch_size")) ** 2 + 1,
        "v_sam_layer": sam.whole("num_hidden_layers"),
        "v_sam_embd": n_embd,
        "v_sam_qkv": 3 * n_embd,
        "v_sam_ff": sam.whole("mlp_dim"),
        "v_sam_head_dim": n_embd // sam.whole("num_attention_heads"),
        "v_sam_patch": sam.whole("patch_size"),
        "v_sam_side": side,
        "v_sam_distances": 2 * side - 1,
        "v_sam_window": 2 * sam.whole("window_size") - 1,
        "v_sam_neck": sam.whole("output_channels"),
        "v_sam_half": half,
        "v_joined": 2 * out,
    }


def _vision_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    sam, encoder = _sam(config), _encoder(config)
    token = {} if config.get(*IMAGE_TOKEN.sources) is None else {"image_token_id": config.whole(*IMAGE_TOKEN.sources)}
    return {
        **token,
        "vision.block_count": sizes["v_layer"],
        "vision.embedding_length": sizes["v_embd"],
        "vision.feed_forward_length": sizes["v_ff"],
        "vision.attention.head_count": encoder.whole("num_attention_heads"),
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.image_size": sam.whole("image_size"),
        "vision.patch_size": sizes["v_sam_patch"],
        "vision.window_size": sam.whole("window_size"),
        "vision.sam.block_count": sizes["v_sam_layer"],
        "vision.sam.embedding_length": sizes["v_sam_embd"],
        "vision.sam.head_count": sam.whole("num_attention_heads"),
    }


def _image_keys(processor: Config) -> Mapping[str, Any]:
    names = {"tile_size": "tile_size", "min_patches": "preproc_min_tiles", "max_patches": "preproc_max_tiles"}
    given = {key: processor.whole(name) for name, key in names.items() if processor.get(name) is not None}
    return {**colours(processor), **{f"vision.{key}": value for key, value in given.items()}}


def _is_global(config: Config, layer: int) -> bool:
    return layer in _sam(config).get("global_attn_indexes")


def _table(name: str, size: str, *, whole: bool) -> TensorMap:
    return TensorMap(
        f"v.sam.blk.{{i}}.attn.pos_{name}.weight", f"{SAM}blocks.{{i}}.attn.rel_pos_{name}", (size, "v_sam_head_dim"),
        applies=lambda config, layer: _is_global(config, layer) == whole,
    )  # fmt: skip


SAM, CLIP = "model.sam_model.", "model.vision_model."
SAM_BLOCK, SAM_SOURCE = "v.sam.blk.{i}.", SAM + "blocks.{i}."
BLOCK_V, SOURCE = "v.blk.{i}.", CLIP + "transformer.layers.{i}."
SAM_TENSORS = (
    *affine("v.sam.patch_embd", SAM + "patch_embed.proj", "v_sam_embd", 3, "v_sam_patch", "v_sam_patch"),
    TensorMap("v.sam.pos_embd.weight", SAM + "pos_embed", (1, "v_sam_side", "v_sam_side", "v_sam_embd")),
    *layered(
        "v_sam_layer",
        *affine(SAM_BLOCK + "pre_ln", SAM_SOURCE + "norm1", "v_sam_embd"),
        *affine(SAM_BLOCK + "attn.qkv", SAM_SOURCE + "attn.qkv", "v_sam_qkv", "v_sam_embd"),
        *(_table(axis, "v_sam_distances", whole=True) for axis in "hw"),
        *(_table(axis, "v_sam_window", whole=False) for axis in "hw"),
        *affine(SAM_BLOCK + "attn.out", SAM_SOURCE + "attn.proj", "v_sam_embd", "v_sam_embd"),
        *affine(SAM_BLOCK + "post_ln", SAM_SOURCE + "norm2", "v_sam_embd"),
        *affine(SAM_BLOCK + "mlp.lin1", SAM_SOURCE + "mlp.lin1", "v_sam_ff", "v_sam_embd"),
        *affine(SAM_BLOCK + "mlp.lin2", SAM_SOURCE + "mlp.lin2", "v_sam_embd", "v_sam_ff"),
    ),
    matrix("v.sam.neck.0", SAM + "neck.0", "v_sam_neck", "v_sam_embd", 1, 1),
    *affine("v.sam.neck.1", SAM + "neck.1", "v_sam_neck"),
    matrix("v.sam.neck.2", SAM + "neck.2", "v_sam_neck", "v_sam_neck", 3, 3),
    *affine("v.sam.neck.3", SAM + "neck.3", "v_sam_neck"),
    matrix("v.sam.net_2", SAM + "net_2", "v_sam_half", "v_sam_neck", 3, 3),
    matrix("v.sam.net_3", SAM + "net_3", "v_embd", "v_sam_half", 3, 3),
)
VISION = Vision(
    sizes=_vision_sizes,
    keys=_vision_keys,
    image_keys=_image_keys,
    sources=r"^(?:model\.)?(?:sam_model\.|vision_model\.|projector\.|image_newline$|view_seperator$)",
    tensors=(
        *SAM_TENSORS,
        TensorMap("v.class_embd", CLIP + "embeddings.class_embedding", ("v_embd",)),
        matrix("v.position_embd", CLIP + "embeddings.position_embedding", "v_places", "v_embd"),
        *affine("v.pre_ln", CLIP + "pre_layrnorm", "v_embd"),
        *layered(
            "v_layer",
            *affine(BLOCK_V + "ln1", SOURCE + "layer_norm1", "v_embd"),
            *affine(BLOCK_V + "attn_qkv", SOURCE + "self_attn.qkv_proj", "v_qkv", "v_embd"),
            *affine(BLOCK_V + "attn_out", SOURCE + "self_attn.out_proj", "v_embd", "v_embd"),
            *affine(BLOCK_V + "ln2", SOURCE + "layer_norm2", "v_embd"),
            *affine(BLOCK_V + "ffn_up", SOURCE + "mlp.fc1", "v_ff", "v_embd"),
            *affine(BLOCK_V + "ffn_down", SOURCE + "mlp.fc2", "v_embd", "v_ff"),
        ),
        *affine("mm.model.fc", "model.projector.layers", "n_embd", "v_joined"),
        TensorMap("v.image_newline", "model.image_newline", ("n_embd",)),
        TensorMap("v.view_seperator", "model.view_seperator", ("n_embd",)),
    ),
)


def _text_sizes(config: Config) -> dict[str, int]:
    shared = config.whole("n_shared_experts") * config.whole("moe_intermediate_size")
    return {**sizes(config), "n_expert": config.whole("n_routed_experts"), "n_ff_shexp": shared}


def _text_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu", "use_mla": False, "topk_method": "greedy", "attention_bias": False})
    if set(config.get("layer_types", default=())) - {"full_attention"}:
        raise UnsupportedModelError(f"{config.home}: layer_types has attention within a window that spares the prompt")
    return {
        **rope_and_size(config, sizes),
        "leading_dense_block_count": n_dense(config),
        "expert_count": sizes["n_expert"],
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_count": config.whole("n_shared_experts"),
        "expert_gating_func": SOFTMAX,
        "expert_weights_scale": float(config.number("routed_scaling_factor", default=1.0)),
        "expert_weights_norm": bool(config.get("norm_topk_prob", default=False)),
    }


TEXT = decoder(
    "deepseek2-ocr",
    ("DeepseekOCRForCausalLM", "UnlimitedOcrForConditionalGeneration"),
    (
        ATTN_NORM, *ATTENTION, FFN_NORM, *only(is_dense, *MLP), *experts(has_experts),
        *only(has_experts, *shared_expert("mlp.shared_experts")),
    ),
    sizes=_text_sizes,
    keys=tuple(key for key in DECODER_KEYS if key.name != "expert_count"),
    more_keys=_text_keys,
    pre_names=("deepseek-v3",),
)  # fmt: skip
ARCHITECTURES = (
    replace(
        TEXT,
        defaults=DEFAULTS,
        renames=(),
        ignored=(r"^model\.vision_model\.embeddings\.(?:patch_embedding\.weight|position_ids)$",),
        always_f32=(r"^v\.sam\.(?:pos_embd|blk\.\d+\.attn\.pos_[hw])\.weight$",),
        chat_templates={"default": TEMPLATE},
        vision=VISION,
    ),
)
