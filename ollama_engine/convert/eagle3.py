"""EAGLE-3 heads -> `general.architecture` = eagle3, as llama.cpp's converter writes them.

Published in two forms: that of its authors (SafeAILab, SpecForge), whose config.json is a Llama's of one block named
`midlayer`, and that of `speculators`, with the block's config in `transformer_layer_config`. Neither has a tokenizer,
and config.json may leave out which blocks of the model the head reads: both come from that model's file.

llama.cpp has no names for several blocks, for norms of each auxiliary state (`fc_norm`) and for states behind the final
norm (`norm_output`): those of such heads are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import Architecture, Key, Sizes, TensorMap, decoder_sizes, linear
from ollama_engine.convert.decoder import BLOCK, EMBEDDING, FFN_NORM, LAYER, MLP, norm, only
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.rope import rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, pair_heads
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.gguf.next_tokens import EAGLE3, n_blocks

__all__ = ["ARCHITECTURES"]

BLOCKS = "eagle_aux_hidden_state_layer_ids"
TARGET = ("target_hidden_size", "target_vocab_size")


def _told_by_target(target: Metadata) -> Mapping[str, Any]:
    """What config.json may leave out: the model's sizes, and the blocks that all training code reads by default."""
    n = n_blocks(target)[0]
    tokens = target.values.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise ModelFormatError("the model that the head drafts for has no vocabulary")
    values = (target.u32("embedding_length"), len(tokens))
    return {BLOCKS: [2, n // 2, n - 3], "target_block_count": n, **dict(zip(TARGET, values, strict=True))}


def _blocks(config: Config) -> list[int]:
    blocks, n = config.get(BLOCKS), config.whole("target_block_count")
    if not isinstance(blocks, list) or not blocks or not all(type(i) is int and 1 <= i <= n for i in blocks):
        raise config.wrong((BLOCKS,), f"numbers of the model's {n} blocks", blocks)
    return blocks


def _sizes(config: Config) -> Sizes:
    sizes = decoder_sizes(config)
    return sizes | {
        "n_embd_twice": 2 * sizes["n_embd"], "n_aux": len(_blocks(config)) * config.whole("target_hidden_size"),
        "n_draft": config.whole("draft_vocab_size", default=sizes["n_vocab"]), "one": 1,
        "n_target": config.whole("target_vocab_size"), "n_target_embd": config.whole("target_hidden_size"),
        "n_states": len(_blocks(config)),
    }  # fmt: skip


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu"})
    if "sliding_attention" in (config.get("layer_types") or []):
        raise UnsupportedModelError(f"{config.home}: layer_types has local layers, and GGUF files have none for a head")
    return {
        **rope_keys(config), "rope.dimension_count": sizes["head_dim"], "target_layers": _blocks(config),
        "target_hidden_size": config.whole("target_hidden_size"),
        "norm_before_residual": bool(config.get("norm_before_residual", default=False)),
        "norm_before_fc": bool(config.get("norm_before_fc", default=False)),
        **{name: True for name in ("fc_norm", "norm_output") if config.get(name)},
    }  # fmt: skip


def _tokens(offsets: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
    """Published are differences from the head's own ids, written the model's ids."""
    tokens: NDArray[Any] = offsets + np.arange(len(offsets), dtype=offsets.dtype)
    if not 0 <= tokens.min() <= tokens.max() < sizes["n_target"]:
        raise ModelFormatError(
            f"d2t names tokens from {tokens.min()} to {tokens.max()}, and the model has {sizes['n_target']}: the head "
            "is for another one"
        )
    return tokens


def _projections(into: str) -> tuple[TensorMap, ...]:
    return (
        *linear(BLOCK + "attn_q", LAYER + "self_attn.q_proj", "q_size", into, pair_heads("n_head")),
        *linear(BLOCK + "attn_k", LAYER + "self_attn.k_proj", "kv_size", into, pair_heads("n_head_kv")),
        *linear(BLOCK + "attn_v", LAYER + "self_attn.v_proj", "kv_size", into),
    )


def _is_first(config: Config, layer: int) -> bool:
    return layer == 0


TENSORS = (
    replace(EMBEDDING, optional=True),
    TensorMap("fc.weight", "fc.weight", ("n_embd", "n_aux")),
    TensorMap("enc.output_norm.weight", "input_norm.weight", ("n_aux",),
              applies=lambda config, layer: bool(config.get("norm_before_fc"))),
    TensorMap("enc.{i}.norm.weight", "fc_norm.{i}.weight", ("n_target_embd",), layers="n_states",
              applies=lambda config, layer: bool(config.get("fc_norm"))),
    norm(BLOCK + "attn_norm", LAYER + "input_layernorm"),
    *only(_is_first, norm(BLOCK + "attn_norm_2", LAYER + "hidden_norm"), *_projections("n_embd_twice")),
    *only(lambda config, layer: layer > 0, *_projections("n_embd")),
    *linear(BLOCK + "attn_output", LAYER + "self_attn.o_proj", "n_embd", "q_size"),
    TensorMap(BLOCK + "attn_q_norm.weight", LAYER + "self_attn.q_norm.weight", ("head_dim",), pair_heads("one"),
              optional=True),
    TensorMap(BLOCK + "attn_k_norm.weight", LAYER + "self_attn.k_norm.weight", ("head_dim",), pair_heads("one"),
              optional=True),
    FFN_NORM,
    *MLP,
    norm("output_norm", "model.norm"),
    TensorMap("output.weight", "lm_head.weight", ("n_draft", "n_embd"), optional=True),
    TensorMap("d2t", "d2t", ("n_draft",), Transform(_tokens, entrywise=False), optional=True),
)  # fmt: skip

NAMED = Architecture(
    name=EAGLE3,
    classes=("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel"),
    sizes=_sizes,
    keys=(*DECODER_KEYS, Key("vocab_size", "u32", ("vocab_size",))),
    tensors=TENSORS,
    more_keys=_keys,
    llama3_rope=True,
    renames=((r"^midlayer\.", "model.layers.0."), (r"^(?=embed_tokens\.|layers\.|norm\.)", "model.")),
    ignored=(r"^t2d$", r"^verifier_"),
    told_by_target=_told_by_target,
)

ARCHITECTURES = (
    NAMED,
    # As their authors publish them, with the class of the model that they are for.
    replace(
        NAMED, classes=("LlamaForCausalLM",), fits=lambda config: config.get("draft_vocab_size") is not None
    ),
)  # fmt: skip
