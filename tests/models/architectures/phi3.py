"""Phi 3 to 4: with a window, with a long context's factors, with parts for pictures and speech that are left out."""

from __future__ import annotations

from tests.models.families import Family

_LONGROPE = {
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
        "long_factor": [1 + i / 3 for i in range(12)], "short_factor": [1 + i / 50 for i in range(12)],
    },
}  # fmt: skip
_WINDOW = {"sliding_window": 24, "hidden_size": 128, "tie_word_embeddings": True}
_TOWERS = {
    "hidden_size": 128, "tie_word_embeddings": True,
    "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                      "image_size": 28, "crop_size": 28},
    "audio_config": {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 2, "num_attention_heads": 2,
                     "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32, "nemo_conv_channels": 8},
}  # fmt: skip

CASES = (
    Family("phi3", "Phi3", _WINDOW, contract=True),
    Family("phi3-longrope-bf16", "Phi3", {**_LONGROPE, "hidden_size": 128}, dtype="BF16", contract=True),
    Family("phi4-multimodal", "Phi4Multimodal", {**_LONGROPE, **_TOWERS}),
    Family("phi4-multimodal-bf16", "Phi4Multimodal", _TOWERS, dtype="BF16"),
)
