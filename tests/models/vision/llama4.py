"""Llama 4 that reads images. Tiles are small, so that pictures have 1 to 16 of them, and batches none that is whole.

The published processor resizes with torchvision, whose weights have 15 bits. Here Pillow resizes for it, as for the
engine and for Meta's own code, so that pixels are equal; `tests/models/llama4/test_preprocess.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_CTX, N_TEXT, Case, Prompt, Token
from tests.models.vision.pictures import Picture
from tests.models.vision.published_processor import LLAMA4, image_processor

IMAGE_SIZE, PATCH_SIZE = 56, 14

TOKENS = tuple(
    Token(f"<|{name}|>")
    for name in ("image_start", "image_end", "patch", "tile_x_separator", "tile_y_separator", "image")
)
BEGIN, END, PATCH = range(N_TEXT, N_TEXT + 3)


@dataclass(frozen=True, kw_only=True)
class Llama4Case(Case):
    def processor(self, tokenizer: Any) -> Any:
        from transformers import Llama4Processor  # noqa: PLC0415

        side = self.config["vision_config"]["image_size"]
        images = image_processor(LLAMA4, pillow=True, size={"height": side, "width": side})
        return Llama4Processor(images, tokenizer, patch_size=PATCH_SIZE)

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        import torch  # noqa: PLC0415

        unfolded = torch.nn.functional.unfold(inputs["pixel_values"], PATCH_SIZE, stride=PATCH_SIZE)
        return {"tiles": unfolded.permute(0, 2, 1).numpy()}

    def features(self, model: Any, inputs: Any) -> list[NDArray[np.float32]]:
        rows = model.get_image_features(inputs["pixel_values"]).last_hidden_state
        projected = model.multi_modal_projector(rows.flatten(0, 1)).float().numpy()
        ids = inputs["input_ids"][0].numpy()
        begins, ends = np.flatnonzero(ids == BEGIN), np.flatnonzero(ids == END)
        lengths = [int((ids[begin:end] == PATCH).sum()) for begin, end in zip(begins, ends, strict=True)]
        return np.split(projected, np.cumsum(lengths)[:-1])


_TEXT = {
    "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 48, "intermediate_size_mlp": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "num_local_experts": 4, "interleave_moe_layer_step": 2, "attention_chunk_size": 40, "floor_scale": 16,
    "max_position_embeddings": N_CTX, "pad_token_id": 0, "bos_token_id": 317, "eos_token_id": 318,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128,
    "image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, "vision_output_dim": 40, "projector_input_dim": 40,
    "projector_output_dim": 40,
}  # fmt: skip
_PROMPTS: dict[str, Prompt] = {
    "one": ("Look: ", Picture(100, 60), " what is it?"),
    "two": (Picture(31, 97, 1), "and\n", Picture(197, 31, 2), "\n\nare they alike?"),
    "three": ("a", Picture(64, 64, 3), "b", Picture(5, 3, 4), Picture(300, 200, 5), "c"),
}

CASES = (
    Llama4Case(
        name="llama4",
        model="Llama4ForConditionalGeneration",
        config={
            "text_config": _TEXT, "vision_config": _VISION, "boi_token_index": BEGIN, "eoi_token_index": END,
            "image_token_index": PATCH,
        },
        placeholder="<|image|>",
        tokens=TOKENS,
        prompts=_PROMPTS,
        seed=5,
    ),
)  # fmt: skip
