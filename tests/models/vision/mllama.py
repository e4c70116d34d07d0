"""Llama 3.2 Vision. Tiles of 56 x 56 pixels, so that small pictures have each of the eight aspect ratios.

transformers differs in two places from what computes the published weights at their publisher
(github.com/meta-llama/llama-models at 88e9f6aa, models/llama3/multimodal/model.py):
- transformers 5 keeps the hidden states from behind the layers that the config names. There, and in transformers 4,
  they are those from before (`ImageTransformer.forward` appends x where idx is in return_intermediate, then computes
  the block). So the reference counts from the layer before; nothing of it is changed for that.
- Rows without an image take what attention to all images gives, though nothing of the feed-forward block, also in
  transformers 4. There they take neither (`CrossAttention.forward`: output * full_text_row_masked_out_mask). `adapt`
  mends that. Prompts whose rows all see an image need no mending: test_mllama_reference.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_CTX, N_TEXT, PICTURES, PROMPTS, Case, Token
from tests.models.vision.pictures import Picture
from tests.support.tiny import SPECIALS

TILE, PATCH = 56, 14
N_PLACES = (TILE // PATCH) ** 2 + 1
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}


@dataclass(frozen=True, kw_only=True)
class MllamaCase(Case):
    @property
    def banned(self) -> dict[int, float]:
        """The image's token has no logit."""
        return dict.fromkeys(range(N_TEXT - len(SPECIALS), N_TEXT), -np.inf)

    def weight(self, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
        """Gates far enough from 0 that images are seen, and from each other that exchanged ones show."""
        found = super().weight(name, shape)
        if name.endswith("patch_embedding.weight"):
            return found / np.float32(self.embeddings * np.sqrt(np.prod(shape[1:])))
        return found + np.float32(0.3) if name.endswith(("gate", "gate_attn", "gate_ffn")) else found

    def processor(self, tokenizer: Any) -> Any:
        from transformers import MllamaProcessor  # noqa: PLC0415
        from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil  # noqa: PLC0415

        made = MllamaProcessor(MllamaImageProcessorPil(size={"height": TILE, "width": TILE}, **CLIP), tokenizer)

        def process(**inputs: Any) -> Any:
            # The processor itself writes the token that begins a text.
            return made(add_special_tokens=False, **inputs)

        return process

    def adapt(self, model: Any) -> None:
        vision = model.model.vision_model
        vision.intermediate_layers_indices = [layer - 1 for layer in vision.intermediate_layers_indices]
        self.mend_rows(model)

    def mend_rows(self, model: Any) -> None:
        """Rows without an image take nothing from cross-attention."""
        for layer in model.model.language_model.layers:
            if hasattr(layer, "cross_attn"):
                _drop_attention_of_rows_without_image(layer)

    def features(self, model: Any, inputs: Any) -> list[NDArray[np.float32]]:
        names = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")
        states = model.model.vision_model(**{name: inputs[name] for name in names}).last_hidden_state
        made = model.model.multi_modal_projector(states)[0].numpy()
        n_tiles = inputs["aspect_ratio_mask"][0].sum(-1).tolist()
        return [rows[:n].reshape(n * N_PLACES, -1) for rows, n in zip(made, n_tiles, strict=True)]

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        n = int(inputs["aspect_ratio_mask"][0, 0].sum())
        pixels = inputs["pixel_values"][0, 0].numpy()
        assert not pixels[n:].any(), "tiles without pixels are zeros"
        side = TILE // PATCH
        split = pixels[:n].reshape(n, 3, side, PATCH, side, PATCH).transpose(0, 2, 4, 1, 3, 5)
        return {"patches": split.reshape(n * side * side, -1), "ratio": inputs["aspect_ratio_ids"][0].numpy()}


def _drop_attention_of_rows_without_image(layer: Any) -> None:
    shown: dict[str, Any] = {}

    def before(_: Any, arguments: Any, named: Mapping[str, Any]) -> None:
        shown["rows"] = named.get("full_text_row_masked_out_mask")

    def after(_: Any, arguments: Any, out: Any) -> Any:
        return out if shown["rows"] is None else (out[0] * shown["rows"][:, 0], *out[1:])

    layer.register_forward_pre_hook(before, with_kwargs=True)
    layer.cross_attn.register_forward_hook(after)


_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
_TEXT = {
    "vocab_size": N_TEXT, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": N_CTX, "pad_token_id": 0,
    "bos_token_id": 317, "eos_token_id": 318, "cross_attention_layers": [1, 3], "rope_parameters": _LLAMA3,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_global_layers": 2, "attention_heads": 4, "intermediate_size": 48,
    "image_size": TILE, "patch_size": PATCH, "vision_output_dim": 128, "intermediate_layers_indices": [1, 3, 2],
}  # fmt: skip

CASES = (
    MllamaCase(
        name="mllama",
        model="MllamaForConditionalGeneration",
        config={"text_config": _TEXT, "vision_config": _VISION, "image_token_index": N_TEXT},
        placeholder="<|image|>",
        embeddings=2.0,
        seed=8,
        tokens=(Token("<|image|>", "image_token"),),
        prompts={
            **PROMPTS,
            "side by side": ("See ", Picture(120, 40, 6), Picture(40, 120, 7), " both"),
            "runs": (Picture(60, 20, 8), Picture(30, 30, 9), "a", Picture(200, 170, 10), "b"),
        },
        pictures=(*PICTURES, *(Picture(w * TILE, h * TILE) for w in range(1, 5) for h in range(1, 5))),
    ),
)
