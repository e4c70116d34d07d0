"""StarCoder2 -> `general.architecture` = starcoder2."""

from __future__ import annotations

from ollama_engine.convert.architecture import Key, TensorMap, linear
from ollama_engine.convert.decoder import ATTENTION, BLOCK, LAYER, decoder, norm
from ollama_engine.convert.keys import DECODER_KEYS

__all__ = ["ARCHITECTURES"]


def _norm(target: str, source: str) -> tuple[TensorMap, TensorMap]:
    return norm(target, source), TensorMap(f"{target}.bias", f"{source}.bias", ("n_embd",))


ARCHITECTURES = (
    decoder(
        "starcoder2",
        ("Starcoder2ForCausalLM",),
        (
            *_norm(BLOCK + "attn_norm", LAYER + "input_layernorm"),
            *ATTENTION,
            *_norm(BLOCK + "ffn_norm", LAYER + "post_attention_layernorm"),
            *linear(BLOCK + "ffn_up", LAYER + "mlp.c_fc", "n_ff", "n_embd"),
            *linear(BLOCK + "ffn_down", LAYER + "mlp.c_proj", "n_embd", "n_ff"),
        ),
        keys=(
            *DECODER_KEYS,
            Key("attention.layer_norm_epsilon", "f32", ("norm_epsilon",)),
            Key("attention.sliding_window", "u32", ("sliding_window",), required=False),
        ),
        output_norm=_norm("output_norm", "model.norm"),
        pre_names=("starcoder",),
    ),
)
