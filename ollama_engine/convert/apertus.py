"""Apertus -> `general.architecture` = apertus. The numbers of its activation are keys, not tensors."""

from __future__ import annotations

from dataclasses import replace

from ollama_engine.convert.architecture import linear
from ollama_engine.convert.decoder import ATTENTION, BLOCK, LAYER, QK_NORM, decoder, norm, requiring

__all__ = ["ARCHITECTURES"]

APERTUS = decoder(
    "apertus",
    ("ApertusForCausalLM",),
    (
        norm(BLOCK + "attn_norm", LAYER + "attention_layernorm"),
        *ATTENTION,
        *QK_NORM,
        norm(BLOCK + "ffn_norm", LAYER + "feedforward_layernorm"),
        *linear(BLOCK + "ffn_up", LAYER + "mlp.up_proj", "n_ff", "n_embd"),
        *linear(BLOCK + "ffn_down", LAYER + "mlp.down_proj", "n_embd", "n_ff"),
    ),
    more_keys=requiring({"hidden_act": "xielu"}),
    pre_names=("tekken",),
)
ARCHITECTURES = (
    replace(
        APERTUS,
        numbers={f"xielu.{name}": f"{LAYER}mlp.act_fn.{name}" for name in ("alpha_n", "alpha_p", "beta", "eps")},
        ignored=(r"\.act_fn\.(?:alpha_n|alpha_p|beta|eps)$",),
    ),
)
