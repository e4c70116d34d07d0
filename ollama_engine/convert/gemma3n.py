"""Gemma 3n, its text part -> `general.architecture` = gemma3n, its norms as they are published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import COMMON_RENAMES, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    LAYER,
    MLP,
    QK_NORM,
    decoder,
    layer_types,
    local_rope_keys,
    norm,
    rope_and_size,
)
from ollama_engine.convert.decoder import sizes as decoder_sizes
from ollama_engine.convert.gemma4 import PER_LAYER, PER_LAYER_EMBEDDING
from ollama_engine.convert.keys import DECODER_KEYS
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform
from ollama_engine.convert.vision import expect
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

DEFAULTS = {
    "head_dim": 256, "num_kv_shared_layers": 15, "hidden_size_per_layer_input": 256, "altup_num_inputs": 4,
    "altup_active_idx": 0, "laurel_rank": 64, "vocab_size_per_layer_input": 262144, "final_logit_softcapping": 30.0,
    "sliding_window": 512, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
}  # fmt: skip


def _n_own(config: Config) -> int:
    """Layers with keys and values of their own."""
    return config.whole("num_hidden_layers") - config.whole("num_kv_shared_layers")


def _n_ff(config: Config) -> int:
    """The width of all feed-forward blocks. Raises UnsupportedModelError where they differ."""
    value = config.get("intermediate_size")
    widths = set(value if isinstance(value, list) else [value])
    if len(widths) != 1 or type(width := next(iter(widths))) is not int:
        raise UnsupportedModelError(f"{config.home}: intermediate_size is {value!r:.60}, expected one width for all")
    return width


def _sizes(config: Config) -> dict[str, int]:
    plain = decoder_sizes(Config({**config.values, "intermediate_size": _n_ff(config)}, config.home))
    n_streams, n_per_layer = config.whole("altup_num_inputs"), config.whole("hidden_size_per_layer_input")
    return plain | {
        # Matrices of the streams but the first are stacked as those of experts are.
        "n_expert": n_streams - 1, "n_streams": n_streams, "n_coefficients": n_streams**2,
        "n_laurel": config.whole("laurel_rank"), "n_per_layer": n_per_layer,
        "n_per_layer_all": n_per_layer * plain["n_layer"], "n_per_layer_vocab": config.whole(
            "vocab_size_per_layer_input"),
    }  # fmt: skip


def _cutoffs(config: Config, n_layer: int) -> list[float]:
    """How many deviations above the mean the share of each layer's gates ends that is set to 0; 0 for none."""
    shares = config.get("activation_sparsity_pattern")
    if shares is None:
        shares = [0.95] * 10 + [0.0] * (n_layer - 10) if n_layer > 10 else [0.0] * n_layer
    if not isinstance(shares, list) or len(shares) != n_layer or not all(0 <= share < 1 for share in shares):
        raise config.wrong(("activation_sparsity_pattern",), f"{n_layer} numbers from 0 to 1", shares)
    return [NormalDist().inv_cdf(share) if share else 0.0 for share in shares]


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(config, "hidden_activation", "gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    expect(config, "altup_correct_scale", True, default=True)
    n_layer = sizes["n_layer"]
    return {
        **rope_and_size(config, sizes),
        **local_rope_keys(config),
        "feed_forward_length": sizes["n_ff"],
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": layer_types(config, lambda i: (i + 1) % 5 != 0),
        "attention.shared_kv_layers": n_layer - _n_own(config),
        "embedding_length_per_layer_input": sizes["n_per_layer"],
        "altup.num_inputs": sizes["n_streams"],
        "altup.active_idx": config.whole("altup_active_idx"),
        "laurel_rank": sizes["n_laurel"],
        "activation_sparsity_scale": _cutoffs(config, n_layer),
        "final_logit_softcapping": float(config.number("final_logit_softcapping")),
    }


def _filled(rows: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
    """A row for each token: those that have none, which stand for pictures and sound, get the first."""
    return np.concatenate([rows, np.repeat(rows[:1], sizes["n_vocab"] - len(rows), axis=0)])


FILLED = Transform(_filled, lambda shape, sizes: (sizes["n_vocab"], *shape[1:]), entrywise=False)


def _own(config: Config, i: int) -> bool:
    return i < _n_own(config)


def _attention() -> tuple[TensorMap, ...]:
    """Layers that share keys and values of others do not use what published checkpoints have of their own."""
    kv = ("attn_k", "attn_v")
    made = []
    for tensor in (*ATTENTION, *QK_NORM):
        shared = tensor.target.startswith(tuple(BLOCK + name for name in kv))
        made += [replace(tensor, applies=_own)] if shared else [tensor]
        if shared:
            made.append(replace(tensor, applies=lambda config, i: not _own(config, i), left_out=True))
    return tuple(made)


ALTUP = (
    norm(BLOCK + "altup_router_norm", LAYER + "altup.router_norm"),
    *linear(BLOCK + "altup_router", LAYER + "altup.modality_router", "n_streams", "n_embd"),
    *linear(BLOCK + "altup_predict_coef", LAYER + "altup.prediction_coefs", "n_coefficients", "n_streams"),
    *linear(BLOCK + "altup_correct_coef", LAYER + "altup.correction_coefs", "n_streams", "n_streams"),
    TensorMap(BLOCK + "altup_correct_scale.weight", LAYER + "altup.correct_output_scale", ("n_embd",)),
)
LAUREL = (
    *linear(BLOCK + "laurel_l", LAYER + "laurel.linear_left", "n_laurel", "n_embd"),
    *linear(BLOCK + "laurel_r", LAYER + "laurel.linear_right", "n_embd", "n_laurel"),
    norm(BLOCK + "laurel_post_norm", LAYER + "laurel.post_laurel_norm"),
)
MODEL = (
    norm("output_norm", "model.norm"),
    TensorMap("altup_proj.weight", "model.altup_projections.{e}.weight", ("n_embd", "n_embd")),
    TensorMap("altup_unembd_proj.weight", "model.altup_unembed_projections.{e}.weight", ("n_embd", "n_embd")),
    replace(PER_LAYER_EMBEDDING[0], shape=("n_per_layer_vocab", "n_per_layer_all"), transform=FILLED),
    *PER_LAYER_EMBEDDING[1:],
)

ARCHITECTURES = (
    replace(
        decoder(
            "gemma3n",
            ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
            (
                ATTN_NORM,
                *_attention(),
                norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
                norm(BLOCK + "ffn_norm", LAYER + "pre_feedforward_layernorm"),
                *MLP,
                norm(BLOCK + "post_ffw_norm", LAYER + "post_feedforward_layernorm"),
                *ALTUP,
                *LAUREL,
                *PER_LAYER,
            ),
            sizes=_sizes,
            keys=tuple(key for key in DECODER_KEYS if key.name != "feed_forward_length"),
            more_keys=_keys,
            output_norm=MODEL,
        ),
        defaults=DEFAULTS,
        unsupported={
            r"^(?:model\.)?(?:vision_tower|embed_vision)\.": "images",
            r"^(?:model\.)?(?:audio_tower|embed_audio)\.": "sound",
        },
        renames=((r"^(?:model\.)?(?:language_model\.)?(?=per_layer_|altup_)", "model."), *COMMON_RENAMES),
    ),
)
