"""MiniMax M2 -> `general.architecture` = minimax-m2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Sizes, TensorMap
from ollama_engine.convert.decoder import ATTENTION, ATTN_NORM, BLOCK, FFN_NORM, LAYER, decoder, rotated_part, sizes
from ollama_engine.convert.keys import require
from ollama_engine.convert.rope import rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.ml.gguf.gating import SIGMOID

__all__ = ["ARCHITECTURES"]

MOE = LAYER + "block_sparse_moe."


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu", "scoring_func": "sigmoid", "use_routing_bias": True})
    part = config.whole("rotary_dim", default=0) or rotated_part(config, sizes["head_dim"])
    return {
        "rope.dimension_count": part,
        **rope_keys(config),
        "expert_feed_forward_length": sizes["n_ff"],
        "expert_gating_func": SIGMOID,
    }


ARCHITECTURES = (
    decoder(
        "minimax-m2",
        ("MiniMaxM2ForCausalLM",),
        (
            ATTN_NORM,
            *ATTENTION,
            TensorMap(BLOCK + "attn_q_norm.weight", LAYER + "self_attn.q_norm.weight", ("q_size",)),
            TensorMap(BLOCK + "attn_k_norm.weight", LAYER + "self_attn.k_norm.weight", ("kv_size",)),
            FFN_NORM,
            TensorMap(BLOCK + "ffn_gate_inp.weight", MOE + "gate.weight", ("n_expert", "n_embd")),
            TensorMap(BLOCK + "exp_probs_b.bias", MOE + "e_score_correction_bias", ("n_expert",)),
            TensorMap(BLOCK + "ffn_gate_exps.weight", MOE + "experts.{e}.w1.weight", ("n_ff", "n_embd")),
            TensorMap(BLOCK + "ffn_up_exps.weight", MOE + "experts.{e}.w3.weight", ("n_ff", "n_embd")),
            TensorMap(BLOCK + "ffn_down_exps.weight", MOE + "experts.{e}.w2.weight", ("n_embd", "n_ff")),
        ),
        sizes=sizes,
        more_keys=_more_keys,
        pre_names=("minimax-m2",),
    ),
)
