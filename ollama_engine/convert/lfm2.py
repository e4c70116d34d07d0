"""LFM2 and LFM2-VL -> `general.architecture` = lfm2, lfm2moe."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import COMMON_RENAMES, Architecture, Sizes, TensorMap, linear
from ollama_engine.convert.clip import EPS, activation_key, tower
from ollama_engine.convert.decoder import BLOCK, EMBEDDING, LAYER, OUTPUT, norm, rope_and_size
from ollama_engine.convert.decoder import sizes as decoder_sizes
from ollama_engine.convert.keys import DECODER_KEYS
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, squeeze
from ollama_engine.convert.vision import IMAGE_TOKEN, expect_each, expect_normalized, image_part, side, whole_numbers
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.ml.gguf.gating import SIGMOID

__all__ = ["ARCHITECTURES"]

BILINEAR = 2
"""Pillow's number of the filter."""


def _attends(config: Config) -> list[bool]:
    """Whether each layer has attention. Raises ModelFormatError for `layer_types` that make no sense."""
    n_layer = config.whole("num_hidden_layers")
    types = config.get("layer_types")
    if types is None:
        full = config.get("full_attn_idxs")
        return [full is None or i in full for i in range(n_layer)]
    known = {"conv": False, "full_attention": True}
    if not isinstance(types, list) or len(types) != n_layer or not all(t in known for t in types):
        raise config.wrong(("layer_types",), f"{n_layer} of {', '.join(known)}", types)
    return [known[t] for t in types]


def _only(applies: Callable[[Config, int], bool], tensors: tuple[TensorMap, ...]) -> tuple[TensorMap, ...]:
    return tuple(replace(tensor, applies=applies) for tensor in tensors)


EXPERT = LAYER + "feed_forward.experts.{e}."
CONV = (
    *linear(BLOCK + "shortconv.in_proj", LAYER + "conv.in_proj", "n_embd_thrice", "n_embd"),
    TensorMap(BLOCK + "shortconv.conv.weight", LAYER + "conv.conv.weight", ("n_embd", 1, "n_taps"), squeeze(1)),
    *linear(BLOCK + "shortconv.out_proj", LAYER + "conv.out_proj", "n_embd", "n_embd"),
)

ATTENTION = (
    *linear(BLOCK + "attn_q", LAYER + "self_attn.q_proj", "q_size", "n_embd"),
    *linear(BLOCK + "attn_k", LAYER + "self_attn.k_proj", "kv_size", "n_embd"),
    *linear(BLOCK + "attn_v", LAYER + "self_attn.v_proj", "kv_size", "n_embd"),
    *linear(BLOCK + "attn_output", LAYER + "self_attn.out_proj", "n_embd", "q_size"),
    TensorMap(BLOCK + "attn_q_norm.weight", LAYER + "self_attn.q_layernorm.weight", ("head_dim",)),
    TensorMap(BLOCK + "attn_k_norm.weight", LAYER + "self_attn.k_layernorm.weight", ("head_dim",)),
)
MLP = (
    *linear(BLOCK + "ffn_gate", LAYER + "feed_forward.w1", "n_ff", "n_embd"),
    *linear(BLOCK + "ffn_up", LAYER + "feed_forward.w3", "n_ff", "n_embd"),
    *linear(BLOCK + "ffn_down", LAYER + "feed_forward.w2", "n_embd", "n_ff"),
)


EXPERTS = (
    TensorMap(BLOCK + "ffn_gate_inp.weight", LAYER + "feed_forward.gate.weight", ("n_expert", "n_embd")),
    TensorMap(BLOCK + "exp_probs_b.bias", LAYER + "feed_forward.expert_bias", ("n_expert",)),
    TensorMap(BLOCK + "ffn_gate_exps.weight", EXPERT + "w1.weight", ("n_ff_exp", "n_embd")),
    TensorMap(BLOCK + "ffn_up_exps.weight", EXPERT + "w3.weight", ("n_ff_exp", "n_embd")),
    TensorMap(BLOCK + "ffn_down_exps.weight", EXPERT + "w2.weight", ("n_embd", "n_ff_exp")),
)


def _is_dense(config: Config, layer: int) -> bool:
    return layer < config.whole("num_dense_layers")


def _sizes(config: Config) -> dict[str, int]:
    plain = decoder_sizes(config)
    return plain | {
        "n_ff": _hidden(config),
        "n_embd_thrice": 3 * plain["n_embd"],
        "n_taps": config.whole("conv_L_cache", default=3),
    }


def _hidden(config: Config) -> int:
    """The hidden size of the feed-forward blocks: two thirds of what config.json says, rounded up."""
    n_ff = config.whole("block_ff_dim", "intermediate_size")
    if not config.get("block_auto_adjust_ff_dim", default=True):
        return n_ff
    n_ff, multiple = 2 * n_ff // 3, config.whole("block_multiple_of", default=256)
    factor = config.get("block_ffn_dim_multiplier", default=1.0)
    return n_ff if factor is None else -(-int(factor * n_ff) // multiple) * multiple


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("conv_bias"):
        raise UnsupportedModelError(f"{config.home}: conv_bias is true, and GGUF has no name for such biases")
    return {
        **rope_and_size(config, sizes),
        "feed_forward_length": sizes["n_ff"],
        "attention.head_count_kv": [sizes["n_head_kv"] if attends else 0 for attends in _attends(config)],
        "shortconv.l_cache": sizes["n_taps"],
    }


def _sparse_sizes(config: Config) -> dict[str, int]:
    return _sizes(config) | {"n_ff": config.whole("intermediate_size")}


def _sparse_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if not config.get("use_expert_bias", default=True):
        raise UnsupportedModelError(
            f"{config.home}: use_expert_bias is off, and GGUF files of lfm2moe have such biases"
        )
    if not config.get("norm_topk_prob", default=True):
        raise UnsupportedModelError(f"{config.home}: norm_topk_prob is off, which llama.cpp has no key for in lfm2moe")
    return {
        **_keys(config, sizes),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "leading_dense_block_count": config.whole("num_dense_layers"),
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": float(config.number("routed_scaling_factor", default=1.0)),
    }


def _architecture(
    name: str,
    class_name: str,
    sizes: Callable[[Config], Sizes],
    more_keys: Callable[[Config, Sizes], Mapping[str, Any]],
    *feed_forward: TensorMap,
) -> Architecture:
    return Architecture(
        llama3_rope=True,
        name=name,
        classes=(class_name,),
        sizes=sizes,
        keys=DECODER_KEYS,
        more_keys=more_keys,
        defaults={"rope_theta": 1000000.0, "norm_eps": 1e-5},
        tensors=(
            EMBEDDING,
            norm(BLOCK + "attn_norm", LAYER + "operator_norm"),
            *_only(lambda config, i: not _attends(config)[i], CONV),
            *_only(lambda config, i: _attends(config)[i], ATTENTION),
            norm(BLOCK + "ffn_norm", LAYER + "ffn_norm"),
            *feed_forward,
            norm("token_embd_norm", "model.embedding_norm"),
            OUTPUT,
        ),
        always_f32=(r"shortconv\.conv\.weight$",),
        pre_names=("lfm2",),
    )


# -- LFM2-VL -----------------------------------------------------------------------------------------------------------

KERNEL = Transform(
    lambda values, sizes: values.reshape(len(values), sizes["v_patch"], sizes["v_patch"], -1).transpose(0, 3, 1, 2),
    lambda shape, sizes: (shape[0], sizes["v_channels"], sizes["v_patch"], sizes["v_patch"]),
)
"""Rows of numbers of a patch, colours last, as the kernel of a convolution."""


def _vision_sizes(vision: Config, config: Config) -> Sizes:
    n_embd, patch = vision.whole("hidden_size"), side(vision, "patch_size")
    return {
        "v_places": vision.whole("num_patches"),
        "v_pixels": patch**2 * vision.whole("num_channels"),
        "v_merged": n_embd * config.whole("downsample_factor", default=2) ** 2,
        "v_hidden": config.whole("projector_hidden_size", default=2560),
    }


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect_each(config, projector_hidden_act="gelu", vision_feature_layer=-1)
    grid = math.isqrt(sizes["v_places"])
    if grid**2 != sizes["v_places"]:
        raise vision.wrong(("num_patches",), "the patches of a square", sizes["v_places"])
    return {
        **activation_key(vision),
        "vision.image_size": grid * sizes["v_patch"],
        "vision.projector.scale_factor": config.whole("downsample_factor", default=2),
    }


def _image_keys(processor: Config) -> Mapping[str, Any]:
    expect_normalized(processor, BILINEAR)
    numbers = {"vision.tile_size": "tile_size", "vision.preproc_min_tiles": "min_tiles",
               "vision.preproc_max_tiles": "max_tiles", "vision.min_image_tokens": "min_image_tokens",
               "vision.max_image_tokens": "max_image_tokens"}  # fmt: skip
    return {
        **whole_numbers(processor, numbers),
        "vision.max_pixels_tolerance": float(processor.number("max_pixels_tolerance", default=2.0)),
        "vision.image_splitting": bool(processor.get("do_image_splitting", default=True)),
        "vision.use_thumbnail": bool(processor.get("use_thumbnail", default=True)),
    }


VISION = image_part(
    activation=("gelu_pytorch_tanh", "gelu", "quick_gelu"),
    defaults={
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_channels": 3, "num_patches": 256, "patch_size": 16, "layer_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh",
    },
    keys=(EPS,),
    outer_keys=(IMAGE_TOKEN,),
    more_sizes=_vision_sizes,
    more_keys=_vision_keys,
    image_keys=_image_keys,
    tensors=(
        TensorMap("v.patch_embedding.weight", "vision_tower.embeddings.patch_embedding.weight", ("v_embd", "v_pixels"),
                  KERNEL),
        *tower("vision_tower.", class_token=False),  # of two declarations of one tensor, the first counts
        TensorMap("mm.input_norm.weight", "multi_modal_projector.layer_norm.weight", ("v_merged",), optional=True),
        TensorMap("mm.input_norm.bias", "multi_modal_projector.layer_norm.bias", ("v_merged",), optional=True),
        *linear("mm.1", "multi_modal_projector.linear_1", "v_hidden", "v_merged"),
        *linear("mm.2", "multi_modal_projector.linear_2", "n_embd", "v_hidden"),
    ),
)  # fmt: skip

LFM2 = _architecture("lfm2", "Lfm2ForCausalLM", _sizes, _keys, *MLP)
ARCHITECTURES = (
    LFM2,
    replace(
        LFM2,
        classes=("Lfm2VlForConditionalGeneration",),
        renames=(
            (r"^((?:model\.)?vision_tower\.)vision_model\.", r"\1"),
            (r"^model\.language_model\.", "model."),
            *COMMON_RENAMES,
        ),
        vision=VISION,
    ),
    _architecture(
        "lfm2moe", "Lfm2MoeForCausalLM", _sparse_sizes, _sparse_keys,
        *_only(_is_dense, MLP), *_only(lambda config, i: not _is_dense(config, i), EXPERTS),
    ),
)  # fmt: skip
