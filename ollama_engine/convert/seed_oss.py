"""Seed-OSS -> `general.architecture` = seed_oss."""

from __future__ import annotations

from ollama_engine.convert.decoder import ATTENTION, ATTN_NORM, BLOCK, LAYER, MLP, decoder, norm

__all__ = ["ARCHITECTURES"]

ARCHITECTURES = (
    decoder(
        "seed_oss",
        ("SeedOssForCausalLM",),
        (ATTN_NORM, *ATTENTION, norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"), *MLP),
        pre_names=("seed-coder",),
    ),
)
