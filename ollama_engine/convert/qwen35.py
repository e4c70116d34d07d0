"""Qwen3.5 and Qwen3-Next -> `general.architecture` = qwen35, qwen35moe, qwen3next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import COMMON_RENAMES, Architecture, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import (
    ATTENTION,
    BLOCK,
    LAYER,
    MLP,
    QK_NORM,
    attention_layers,
    decoder,
    experts,
    norm,
    rope_and_size,
)
from ollama_engine.convert.decoder import sizes as decoder_sizes
from ollama_engine.convert.next_tokens import N_NEXT, NEXT_TOKENS, counted, next_token_keys, placed_behind
from ollama_engine.convert.qwen import SHARED
from ollama_engine.convert.qwen3vl import TABLE, VISION
from ollama_engine.convert.rope import rope_parameters
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, add, squeeze
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

LINEAR = LAYER + "linear_attn."
Rows = Callable[[Sizes], NDArray[np.intp]]


# -- the order of heads ------------------------------------------------------------------------------------------------


def _tiled(size: str, before: str | None = None) -> Rows:
    """Rows of heads of values, `size` for each, so that heads which share keys are no neighbours any more.

    `before`: how many rows stay in front of them.
    """

    def rows(sizes: Sizes) -> NDArray[np.intp]:
        shared, each = sizes["n_key_heads"], sizes[size]
        order = np.arange(sizes["n_value_heads"] * each).reshape(shared, -1, each).swapaxes(0, 1).reshape(-1)
        first = 0 if before is None else sizes[before]
        return np.concatenate((np.arange(first), first + order))

    return rows


def _part(kind: str) -> Rows:
    """Rows of Qwen3-Next's projection of all: "qkv" or "z", which it has for each head of keys in turn."""

    def rows(sizes: Sizes) -> NDArray[np.intp]:
        n, dk = sizes["n_key_heads"], sizes["key_dim"]
        dv = sizes["value_size"] // n
        by_head = np.arange(n * 2 * (dk + dv)).reshape(n, -1)
        q, k, v, z = np.split(by_head, [dk, 2 * dk, 2 * dk + dv], axis=1)
        return z.reshape(-1) if kind == "z" else np.concatenate([part.reshape(-1) for part in (q, k, v)])

    return rows


def _take_rows(rows: Rows) -> Transform:
    return Transform(
        lambda values, sizes: values[rows(sizes)],
        lambda shape, sizes: (len(rows(sizes)), *shape[1:]),
        entrywise=False,
    )


def _take_columns(rows: Rows) -> Transform:
    return Transform(lambda values, sizes: values[:, rows(sizes)])


def _taps(rows: Rows | None = None) -> Transform:
    """The weight of a convolution, [channels, 1, taps], without its dimension of 1."""
    if rows is None:
        return squeeze(1)
    return Transform(
        lambda values, sizes: values[rows(sizes)].squeeze(1), lambda shape, sizes: (shape[0], shape[2]), entrywise=False
    )


def _decay(rows: Rows | None = None) -> Transform:
    """The logarithm of a decay becomes the decay, below 0."""

    def apply(values: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
        decay: NDArray[Any] = -np.exp(values if rows is None else values[rows(sizes)])
        return decay

    return Transform(apply, arithmetic=True, entrywise=False)


# -- tensors -----------------------------------------------------------------------------------------------------------

HEADS = _tiled("one")


def _delta_net(tiled: bool) -> tuple[TensorMap, ...]:
    order = HEADS if tiled else None
    by_head = _take_rows(HEADS) if tiled else None
    return (
        TensorMap(
            BLOCK + "ssm_conv1d.weight", LINEAR + "conv1d.weight", ("conv_size", 1, "n_taps"),
            _taps(_tiled("value_dim", "key_size_twice") if tiled else None),
        ),
        TensorMap(BLOCK + "ssm_a", LINEAR + "A_log", ("n_value_heads",), _decay(order)),
        TensorMap(BLOCK + "ssm_dt.bias", LINEAR + "dt_bias", ("n_value_heads",), by_head),
        TensorMap(BLOCK + "ssm_norm.weight", LINEAR + "norm.weight", ("value_dim",)),
        TensorMap(
            BLOCK + "ssm_out.weight", LINEAR + "out_proj.weight", ("n_embd", "value_size"),
            _take_columns(_tiled("value_dim")) if tiled else None,
        ),
    )  # fmt: skip


QWEN35_LINEAR = (
    *linear(BLOCK + "attn_qkv", LINEAR + "in_proj_qkv", "conv_size", "n_embd",
            _take_rows(_tiled("value_dim", "key_size_twice"))),
    *linear(BLOCK + "attn_gate", LINEAR + "in_proj_z", "value_size", "n_embd", _take_rows(_tiled("value_dim"))),
    *linear(BLOCK + "ssm_beta", LINEAR + "in_proj_b", "n_value_heads", "n_embd", _take_rows(HEADS)),
    *linear(BLOCK + "ssm_alpha", LINEAR + "in_proj_a", "n_value_heads", "n_embd", _take_rows(HEADS)),
    *_delta_net(tiled=True),
)  # fmt: skip
QWEN3NEXT_LINEAR = (
    *linear(BLOCK + "attn_qkv", LINEAR + "in_proj_qkvz", "qkvz_size", "n_embd", _take_rows(_part("qkv"))),
    *linear(BLOCK + "attn_gate", LINEAR + "in_proj_qkvz", "qkvz_size", "n_embd", _take_rows(_part("z"))),
    *linear(BLOCK + "ssm_ba", LINEAR + "in_proj_ba", "n_value_heads_twice", "n_embd"),
    *_delta_net(tiled=False),
)
FULL = tuple(
    replace(tensor, shape=("q_size_twice", *tensor.shape[1:])) if "attn_q." in tensor.target else tensor
    for tensor in (*ATTENTION, *(replace(tensor, transform=add(1.0)) for tensor in QK_NORM))
)


NEXT = (
    TensorMap(BLOCK + "nextn.eh_proj.weight", "mtp.fc.weight", ("n_embd", "n_embd_twice")),
    norm(BLOCK + "nextn.enorm", "mtp.pre_fc_norm_embedding", add(1.0)),
    norm(BLOCK + "nextn.hnorm", "mtp.pre_fc_norm_hidden", add(1.0)),
    norm(BLOCK + "nextn.shared_head_norm", "mtp.norm", add(1.0)),
)
"""What the block that predicts the token after the next has beside a block with attention."""


def _sizes(config: Config) -> dict[str, int]:
    plain = decoder_sizes(config)
    n_key_heads, n_heads = config.whole("linear_num_key_heads"), config.whole("linear_num_value_heads")
    key_dim, value_dim = config.whole("linear_key_head_dim"), config.whole("linear_value_head_dim")
    if min(n_key_heads, n_heads, key_dim, value_dim) < 1 or n_heads % n_key_heads:
        raise config.wrong(("linear_num_value_heads",), f"a multiple of {n_key_heads} heads of keys", n_heads)
    keys, values = n_key_heads * key_dim, n_heads * value_dim
    return plain | {
        "one": 1, "n_key_heads": n_key_heads, "n_value_heads": n_heads, "n_value_heads_twice": 2 * n_heads,
        "key_dim": key_dim, "value_dim": value_dim, "key_size_twice": 2 * keys, "value_size": values,
        "conv_size": 2 * keys + values, "qkvz_size": 2 * keys + 2 * values,
        "n_taps": config.whole("linear_conv_kernel_dim", default=4), "q_size_twice": 2 * plain["q_size"],
        "n_ff_shexp": config.whole("shared_expert_intermediate_size", default=0),
        "n_embd_twice": 2 * plain["n_embd"], N_NEXT: config.whole(N_NEXT, default=0),
    }  # fmt: skip


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    attends = attention_layers(config)
    interval = 1 + attends.index(True) if True in attends else len(attends) + 1
    rope = config.mapping("rope_parameters", "rope_scaling")
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", default=0.25))
    return {
        **rope_and_size(config, sizes),
        **next_token_keys(sizes),
        "rope.dimension_count": int(sizes["head_dim"] * part),
        "attention.recurrent_layers": [not attention for attention in attends] + [False] * sizes[N_NEXT],
        "full_attention_interval": interval,
        "ssm.conv_kernel": sizes["n_taps"],
        "ssm.state_size": sizes["key_dim"],
        "ssm.group_count": sizes["n_key_heads"],
        "ssm.time_step_rank": sizes["n_value_heads"],
        "ssm.inner_size": sizes["value_size"],
    }


def _sectioned(keys: Callable[[Config, Sizes], Mapping[str, Any]]) -> Callable[[Config, Sizes], Mapping[str, Any]]:
    """`keys`, and how many pairs of a head go by each axis of positions. All axes are one in texts."""

    def more(config: Config, sizes: Sizes) -> Mapping[str, Any]:
        sections = rope_parameters(config).get("mrope_section", [11, 11, 10])
        return {**keys(config, sizes), "rope.dimension_sections": [*sections, 0]}

    return more


def _sparse_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("mlp_only_layers") or config.whole("decoder_sparse_step", default=1) != 1:
        raise UnsupportedModelError(f"{config.home}: mlp_only_layers or decoder_sparse_step make some layers dense")
    return {
        **_keys(config, sizes),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_feed_forward_length": sizes["n_ff_shexp"],
        "norm_top_k_prob": bool(config.get("norm_topk_prob", default=True)),
    }


def _architecture(name: str, class_names: tuple[str, ...], delta: tuple[TensorMap, ...], *rest: TensorMap,
                  more_keys: Callable[[Config, Sizes], Mapping[str, Any]]) -> Architecture:  # fmt: skip
    both = (
        norm(BLOCK + "attn_norm", LAYER + "input_layernorm", add(1.0)),
        norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm", add(1.0)),
        *rest,
    )
    made = decoder(
        name, class_names,
        (
            *both,
            *(replace(tensor, applies=lambda config, i: attention_layers(config)[i]) for tensor in FULL),
            *(replace(tensor, applies=lambda config, i: not attention_layers(config)[i]) for tensor in delta),
            *placed_behind((*both, *FULL, *NEXT), lambda name: name.replace("model.layers.", "mtp.layers.")),
        ),
        sizes=_sizes, more_keys=more_keys, output_norm=(norm("output_norm", "model.norm", add(1.0)),),
        pre_names=("qwen35", "qwen2"),
    )  # fmt: skip
    return replace(
        made, spare=NEXT_TOKENS, told_by_names=counted(r"\bmtp\.layers\.(\d+)\."),
        renames=(*COMMON_RENAMES, (r"^model\.mtp\.", "mtp.")),
        always_f32=(r"ssm_conv1d\.weight$",),
    )  # fmt: skip


QWEN35 = _architecture("qwen35", ("Qwen3_5ForCausalLM",), QWEN35_LINEAR, *MLP, more_keys=_sectioned(_keys))
QWEN35MOE = _architecture(
    "qwen35moe", ("Qwen3_5MoeForCausalLM",), QWEN35_LINEAR, *experts(), *SHARED, more_keys=_sectioned(_sparse_keys)
)


def _with_images(text: Architecture, class_name: str) -> Architecture:
    return replace(text, classes=(class_name,), vision=VISION, always_f32=(*text.always_f32, TABLE))


ARCHITECTURES = (
    _with_images(QWEN35, "Qwen3_5ForConditionalGeneration"),
    QWEN35,
    _with_images(QWEN35MOE, "Qwen3_5MoeForConditionalGeneration"),
    QWEN35MOE,
    _architecture("qwen3next", ("Qwen3NextForCausalLM",), QWEN3NEXT_LINEAR, *experts(), *SHARED,
                  more_keys=_sparse_keys),
)  # fmt: skip
