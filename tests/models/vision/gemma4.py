"""Gemma 4 that reads images: a large model, whose images are bidirectional in local layers, and a small one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.runner.request.inputs import Inputs
from tests.models.vision.harness import N_TEXT, Case, Token

TOKENS = (
    Token("<|image>", "boi_token"),
    Token("<image|>", "eoi_token"),
    Token("<|image|>", "image_token"),
    # Those of sound, without which transformers' processor refuses pictures.
    Token("<|audio>", "boa_token"),
    Token("<audio|>", "eoa_token"),
    Token("<|audio|>", "audio_token"),
)
PATCH, POOL, MOST = 4, 3, 16
"""transformers takes no fewer embeddings of a picture than 70, and is told to: a step has logits for 32 rows."""


@dataclass(frozen=True, kw_only=True)
class Gemma4Case(Case):
    def weight(self, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
        """Limits of clamped layers cut what is computed. Scores, which are not scaled, are no sharper than usual."""
        if not shape:
            limit = 0.8 + 0.4 * abs(float(super().weight(name, (1,))[0]))
            return np.array(-limit if name.endswith("min") else limit, np.float32)
        return super().weight(name, shape) * np.float32(0.2 if name.endswith("q_norm.weight") else 1)

    def processor(self, tokenizer: Any) -> Any:
        from transformers import Gemma4Processor  # noqa: PLC0415
        from transformers.models.gemma4 import image_processing_pil_gemma4 as slow  # noqa: PLC0415

        slow._SUPPORTED_SOFT_TOKENS = (MOST,)
        images = slow.Gemma4ImageProcessorPil(patch_size=PATCH, pooling_kernel_size=POOL, max_soft_tokens=MOST)
        tokenizer.pad_token = tokenizer.eos_token
        # Parts for sound and films are left out; they need other packages.
        images_only = type("ImagesOnly", (Gemma4Processor,), {"check_argument_for_proper_class": lambda *_: None})
        return images_only(None, images, tokenizer, None)

    def features(self, model: Any, inputs: Any) -> list[Any]:
        found = model.get_image_features(inputs["pixel_values"], inputs["image_position_ids"]).pooler_output
        rows = found if isinstance(found, (list, tuple)) else found.split(self.counts(inputs))
        return [part.float().numpy() for part in rows]

    def counts(self, inputs: Any) -> list[int]:
        """Embeddings of each picture."""
        return [int((p[:, 0] >= 0).sum()) // POOL**2 for p in inputs["image_position_ids"]]

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        """The patches of the processor, channel by channel, and their columns and rows."""
        places = inputs["image_position_ids"][0].numpy()
        n = int((places[:, 0] >= 0).sum())
        patches = inputs["pixel_values"][0].numpy()[:n].reshape(n, PATCH, PATCH, 3).transpose(0, 3, 1, 2)
        return {"patches": patches.reshape(n, -1), "places": places[:n].T}

    def ids(self, inputs: Inputs) -> list[int]:
        ids = inputs.tokens.copy()
        for span in inputs.media:
            ids[span.begin : span.end] = N_TEXT + 2
        return [int(id_) for id_ in ids]


_TEXT = {
    "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "global_head_dim": 48,
    "max_position_embeddings": 1024, "sliding_window": 24, "pad_token_id": 0, "bos_token_id": 317, "eos_token_id": 318,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
_LARGE = {
    **_TEXT, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    "use_bidirectional_attention": "vision",
}  # fmt: skip
_SMALL = {
    **_TEXT, "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": N_TEXT + len(TOKENS),
    "num_kv_shared_layers": 2,
}  # fmt: skip
_VISION = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16,
    "intermediate_size": 72, "patch_size": PATCH, "pooling_kernel_size": POOL, "position_embedding_size": 256,
}  # fmt: skip
_OUTER = {
    "audio_config": None, "boi_token_id": N_TEXT, "eoi_token_id": N_TEXT + 1, "image_token_id": N_TEXT + 2,
    "video_token_id": None, "audio_token_id": None,
}  # fmt: skip
_SHARED: dict[str, Any] = {
    "model": "Gemma4ForConditionalGeneration", "placeholder": "<|image|>", "tokens": TOKENS,
    "embeddings": 0.03, "files": {"preprocessor_config.json": {"max_soft_tokens": MOST}},
}  # fmt: skip

CASES = (
    Gemma4Case(
        name="gemma4",
        config={**_OUTER, "text_config": _LARGE, "vision_config": {**_VISION, "standardize": True}},
        seed=5,
        **_SHARED,
    ),
    Gemma4Case(
        name="gemma4-small",
        config={**_OUTER, "text_config": _SMALL, "vision_config": {**_VISION, "use_clipped_linears": True}},
        seed=5,
        **_SHARED,
    ),
)
