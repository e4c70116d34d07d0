"""Gemma 4 -> `general.architecture` = gemma4, its norms as they are published.

Local and global layers have heads of different sizes; the last layers may share keys and values with earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import COMMON_RENAMES, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import ATTN_NORM, BLOCK, LAYER, MLP, decoder, layer_types, norm, only
from ollama_engine.convert.decoder import sizes as decoder_sizes
from ollama_engine.convert.gemma4_vision import UNIFIED_VISION, VISION
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import half
from ollama_engine.convert.vision import expect
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

NOT_ROTATED = 1e30
"""Divides the angles of the pairs of a head that do not rotate."""

Applies = Callable[[Config, int], bool]


def _locals(config: Config) -> list[bool]:
    local = layer_types(config, lambda i: (i + 1) % 6 != 0)
    return [*local[:-1], False]  # transformers has the last layer attend to all tokens


def _is_local(config: Config, i: int) -> bool:
    return _locals(config)[i]


def _n_own(config: Config) -> int:
    """Layers with keys and values of their own."""
    return config.whole("num_hidden_layers") - config.whole("num_kv_shared_layers", default=0)


def _shares(config: Config, i: int) -> bool:
    return i >= _n_own(config)


def _is_wide(config: Config, i: int) -> bool:
    return bool(config.get("use_double_wide_mlp")) and _shares(config, i)


def _has_values(config: Config, i: int) -> bool:
    return not _shares(config, i) and (_is_local(config, i) or not config.get("attention_k_eq_v"))


def _has_experts(config: Config, i: int) -> bool:
    return bool(config.get("enable_moe_block"))


def _has_per_layer(config: Config, i: int = 0) -> bool:
    return config.whole("hidden_size_per_layer_input", default=256) > 0


def _of_global(config: Config, name: str, outer: str, default: int) -> int:
    """A size of global layers: by itself, as it is published, or in the settings of each layer, as transformers 5.23
    saves it.
    """
    for i, layer in config.mapping("per_layer_config").items():
        if not _is_local(config, int(i)) and name in layer:
            return Config(layer, f"{config.home}: per_layer_config").whole(name)
    return config.whole(outer, default=default)


def _sizes(config: Config) -> dict[str, int]:
    plain = decoder_sizes(config)
    n_per_layer = config.whole("hidden_size_per_layer_input", default=256)
    shares_values = bool(config.get("attention_k_eq_v"))
    head_dim = _of_global(config, "head_dim", "global_head_dim", 512)
    n_head_kv = _of_global(config, "num_key_value_heads", "num_global_key_value_heads", plain["n_head_kv"])
    n_head_kv = n_head_kv if shares_values else plain["n_head_kv"]
    return plain | {
        "global_head_dim": head_dim, "global_n_head_kv": n_head_kv, "global_q_size": plain["n_head"] * head_dim,
        "global_kv_size": n_head_kv * head_dim, "n_per_layer": n_per_layer,
        "n_per_layer_all": n_per_layer * plain["n_layer"],
    }  # fmt: skip


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(config, "hidden_activation", "gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    if config.get("use_bidirectional_attention") == "all":
        raise UnsupportedModelError(f"{config.home}: use_bidirectional_attention is 'all'; this model does not write")
    if _has_per_layer(config) and config.whole("vocab_size_per_layer_input", default=262144) != sizes["n_vocab"]:
        raise UnsupportedModelError(
            f"{config.home}: vocab_size_per_layer_input is not vocab_size {sizes['n_vocab']}, which GGUF has no key for"
        )
    local, n_ff = _locals(config), sizes["n_ff"]
    kv_heads = [sizes["n_head_kv"] if is_local else sizes["global_n_head_kv"] for is_local in local]
    keys = {
        "feed_forward_length": [2 * n_ff if _is_wide(config, i) else n_ff for i in range(len(local))],
        "attention.head_count_kv": kv_heads,
        "attention.key_length": sizes["global_head_dim"],
        "attention.value_length": sizes["global_head_dim"],
        "attention.key_length_swa": sizes["head_dim"],
        "attention.value_length_swa": sizes["head_dim"],
        "attention.sliding_window": config.whole("sliding_window", default=512),
        "attention.sliding_window_pattern": local,
        "attention.shared_kv_layers": len(local) - _n_own(config),
        "embedding_length_per_layer_input": sizes["n_per_layer"],
        "final_logit_softcapping": float(config.number("final_logit_softcapping", default=0)),
        "rope.dimension_count": sizes["global_head_dim"],
        "rope.dimension_count_swa": sizes["head_dim"],
        "rope.freq_base": float(_rope(config, "full_attention", "proportional")["rope_theta"]),
        "rope.freq_base_swa": float(_rope(config, "sliding_attention", "default")["rope_theta"]),
    }
    if not _has_experts(config, 0):
        return keys
    used = config.whole("top_k_experts")
    return {**keys, "expert_used_count": used, "expert_feed_forward_length": sizes["n_ff_exp"]}


ROPES = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


def _rope(config: Config, layers: str, kind: str) -> Mapping[str, Any]:
    """The rotation of one kind of layers. Raises UnsupportedModelError for another kind of rotation."""
    given = config.mapping("rope_parameters").get(layers) or ROPES[layers]
    rope = Config(given, f"{config.home}: rope_parameters: {layers}")
    expect(rope, "rope_type", kind, default=kind)
    expect(rope, "factor", 1.0, default=1.0)
    rope.number("rope_theta")
    return given


def _rope_freqs(config: Config, sizes: Sizes) -> Mapping[str, NDArray[np.float32]]:
    """Divisors of the angles of global layers, a part of whose heads rotates."""
    part = _rope(config, "full_attention", "proportional").get("partial_rotary_factor", 1.0)
    factors = np.full(sizes["global_head_dim"] // 2, NOT_ROTATED, np.float32)
    factors[: int(part * sizes["global_head_dim"] // 2)] = 1.0
    return {"rope_freqs.weight": factors}


def _both(applies: Applies, target: str, source: str, *shape: str) -> tuple[TensorMap, ...]:
    """A tensor of layers that `applies` chooses; those sizes of it that depend on the kind of layer are in HEADS."""
    local = TensorMap(f"{BLOCK}{target}.weight", f"{LAYER}{source}.weight", shape)
    wide = replace(local, shape=tuple(f"global_{size}" if size in HEADS else size for size in shape))
    return (
        *only(lambda config, i: applies(config, i) and _is_local(config, i), local),
        *only(lambda config, i: applies(config, i) and not _is_local(config, i), wide),
    )


HEADS = ("q_size", "kv_size", "head_dim")


def _always(config: Config, i: int) -> bool:
    return True


def _own(config: Config, i: int) -> bool:
    return not _shares(config, i)


ATTENTION = (
    *_both(_always, "attn_q", "self_attn.q_proj", "q_size", "n_embd"),
    *_both(_own, "attn_k", "self_attn.k_proj", "kv_size", "n_embd"),
    *_both(_has_values, "attn_v", "self_attn.v_proj", "kv_size", "n_embd"),
    *_both(_always, "attn_output", "self_attn.o_proj", "n_embd", "q_size"),
    *_both(_always, "attn_q_norm", "self_attn.q_norm", "head_dim"),
    *_both(_own, "attn_k_norm", "self_attn.k_norm", "head_dim"),
    # Published checkpoints have them in layers that do not use them.
    *(
        TensorMap(BLOCK, LAYER + f"self_attn.{name}.weight", (), applies=_shares, left_out=True)
        for name in ("k_proj", "v_proj", "k_norm")
    ),
)
WIDE_MLP = tuple(
    replace(tensor, shape=tuple("n_ff_twice" if size == "n_ff" else size for size in tensor.shape), applies=_is_wide)
    for tensor in MLP
)
EXPERTS = only(
    _has_experts,
    TensorMap(BLOCK + "ffn_gate_inp.weight", LAYER + "router.proj.weight", ("n_expert", "n_embd")),
    TensorMap(BLOCK + "ffn_gate_inp.scale", LAYER + "router.scale", ("n_embd",)),
    TensorMap(BLOCK + "ffn_gate_exps.weight", LAYER + "experts.gate_up_proj",
              ("n_expert", "n_ff_exp_twice", "n_embd"), half(0, 1)),
    TensorMap(BLOCK + "ffn_up_exps.weight", LAYER + "experts.gate_up_proj",
              ("n_expert", "n_ff_exp_twice", "n_embd"), half(1, 1)),
    TensorMap(BLOCK + "ffn_down_exps.weight", LAYER + "experts.down_proj", ("n_expert", "n_embd", "n_ff_exp")),
    TensorMap(BLOCK + "ffn_down_exps.scale", LAYER + "router.per_expert_scale", ("n_expert",)),
    norm(BLOCK + "pre_ffw_norm_2", LAYER + "pre_feedforward_layernorm_2"),
    norm(BLOCK + "post_ffw_norm_1", LAYER + "post_feedforward_layernorm_1"),
    norm(BLOCK + "post_ffw_norm_2", LAYER + "post_feedforward_layernorm_2"),
)  # fmt: skip
PER_LAYER = only(
    _has_per_layer,
    *linear(BLOCK + "inp_gate", LAYER + "per_layer_input_gate", "n_per_layer", "n_embd"),
    *linear(BLOCK + "proj", LAYER + "per_layer_projection", "n_embd", "n_per_layer"),
    norm(BLOCK + "post_norm", LAYER + "post_per_layer_input_norm"),
)
NORMS_AND_SCALE = (
    norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
    norm(BLOCK + "ffn_norm", LAYER + "pre_feedforward_layernorm"),
    norm(BLOCK + "post_ffw_norm", LAYER + "post_feedforward_layernorm"),
    TensorMap(BLOCK + "layer_output_scale.weight", LAYER + "layer_scalar", (1,)),
)
PER_LAYER_EMBEDDING = only(
    _has_per_layer,
    TensorMap("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight", ("n_vocab", "n_per_layer_all")),
    *linear("per_layer_model_proj", "model.per_layer_model_projection", "n_per_layer_all", "n_embd"),
    TensorMap("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight", ("n_per_layer",)),
)

TEXT = replace(
    decoder(
        "gemma4",
        ("Gemma4ForCausalLM",),
        (
            ATTN_NORM,
            *ATTENTION,
            *WIDE_MLP,
            *only(lambda config, i: not _is_wide(config, i), *MLP),
            *EXPERTS,
            *PER_LAYER,
            *NORMS_AND_SCALE,
        ),
        sizes=_sizes,
        more_keys=_keys,
        output_norm=(norm("output_norm", "model.norm"), *PER_LAYER_EMBEDDING),
        pre_names=("gemma4",),
        llama3_rope=False,
    ),
    made_tensors=_rope_freqs,
    unsupported={r"^(?:model\.)?(?:audio_tower|embed_audio)\.": "sound"},
    renames=(
        (r"^model\.(?=embed_vision\.|vision_embedder\.)", ""),
        (r"^(?:model\.)?(?:language_model\.)?(?=per_layer_)", "model."),
        *COMMON_RENAMES,
    ),
)


UNIFIED = replace(
    TEXT,
    classes=("Gemma4UnifiedForCausalLM",),
    defaults={"hidden_size_per_layer_input": 0},
)
"""The 12B model, whose parts that see and hear are a product each."""


def _assistant_sizes(config: Config) -> dict[str, int]:
    return _sizes(config) | {
        "n_embd_out": config.whole("backbone_hidden_size"), "n_embd_joined": 2 * config.whole("backbone_hidden_size")
    }  # fmt: skip


def _assistant_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    n_layer = sizes["n_layer"]
    return {
        **_keys(config, sizes), "attention.shared_kv_layers": n_layer, "nextn_predict_layers": n_layer,
        "embedding_length_out": sizes["n_embd_out"],
    }  # fmt: skip


ASSISTANT = replace(
    decoder(
        "gemma4-assistant",
        ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
        (
            ATTN_NORM,
            *_both(_always, "attn_q", "self_attn.q_proj", "q_size", "n_embd"),
            *_both(_always, "attn_output", "self_attn.o_proj", "n_embd", "q_size"),
            *_both(_always, "attn_q_norm", "self_attn.q_norm", "head_dim"),
            *MLP,
            *NORMS_AND_SCALE,
        ),
        sizes=_assistant_sizes,
        more_keys=_assistant_keys,
        output_norm=(
            norm("output_norm", "model.norm"),
            TensorMap("nextn.pre_projection.weight", "pre_projection.weight", ("n_embd", "n_embd_joined")),
            TensorMap("nextn.post_projection.weight", "post_projection.weight", ("n_embd_out", "n_embd")),
        ),
        pre_names=("gemma4",),
        llama3_rope=False,
    ),
    made_tensors=_rope_freqs,
    # Which part of the vocabulary is looked at: all of it is.
    ignored=(r"^masked_embedding\.",),
    defaults={"hidden_size_per_layer_input": 0},
)

ARCHITECTURES = (
    ASSISTANT,
    replace(TEXT, classes=("Gemma4ForConditionalGeneration",), vision=VISION),
    TEXT,
    replace(UNIFIED, classes=("Gemma4UnifiedForConditionalGeneration",), vision=UNIFIED_VISION),
    UNIFIED,
)
