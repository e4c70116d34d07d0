"""Idefics 3, whose pictures are tiles and a whole, and SmolVLM, here with pictures that are not split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_CTX, N_TEXT, Case, Token
from tests.models.vision.pictures import Picture

SIDE, PATCH, MERGE, TILES = 28, 7, 2, 3
N_TOKENS = (SIDE // PATCH // MERGE) ** 2
TOKENS = (
    Token("<fake_token_around_image>", "fake_image_token"),
    Token("<image>", "image_token"),
    Token("<global-img>", "global_image_token"),
    Token("<end_of_utterance>", "end_of_utterance_token"),
    *(Token(f"<row_{row + 1}_col_{column + 1}>") for row in range(TILES) for column in range(TILES)),
    *(Token("\n" * n, special=False) for n in range(1, 3)),
)
IMAGE, GLOBAL = N_TEXT + 1, N_TEXT + 2


@dataclass(frozen=True, kw_only=True)
class Idefics3Case(Case):
    def processor(self, tokenizer: Any) -> Any:
        from transformers import Idefics3Processor  # noqa: PLC0415
        from transformers.models.idefics3.image_processing_pil_idefics3 import (  # noqa: PLC0415
            Idefics3ImageProcessorPil,
        )

        images = Idefics3ImageProcessorPil(**self.files["preprocessor_config.json"])
        return Idefics3Processor(images, tokenizer, image_seq_len=N_TOKENS)

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        pixels = inputs["pixel_values"].numpy().reshape(-1, 3, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
        return {"tiles": pixels.transpose(0, 2, 4, 1, 3, 5).reshape(len(pixels), -1, 3 * PATCH**2)}

    def features(self, model: Any, inputs: Any) -> list[NDArray[np.float32]]:
        """Transformers has the tiles of all images as one list; the whole of each is its last."""
        found = model.get_image_features(inputs["pixel_values"], inputs["pixel_attention_mask"]).pooler_output
        rows = np.concatenate([np.asarray(part.float().numpy()).reshape(-1, part.shape[-1]) for part in found])
        ids = inputs["input_ids"][0].numpy()
        ends = [int((ids[: place + 2] == IMAGE).sum()) - 1 + N_TOKENS for place in np.flatnonzero(ids == GLOBAL)]
        return np.split(rows, ends[:-1])


_TEXT = {
    "model_type": "llama", "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": N_CTX,
    "pad_token_id": 0, "bos_token_id": 317, "eos_token_id": 318,
}  # fmt: skip
_VISION = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 72, "image_size": SIDE,
    "patch_size": PATCH,
}  # fmt: skip
_CONFIG = {"text_config": _TEXT, "vision_config": _VISION, "image_token_id": IMAGE, "scale_factor": MERGE}
_PROCESSOR = {"size": {"longest_edge": TILES * SIDE}, "max_image_size": {"longest_edge": SIDE}}


def _case(name: str, stem: str, *, seed: int, **processor: Any) -> Idefics3Case:
    return Idefics3Case(
        name=name, model=f"{stem}ForConditionalGeneration", config=_CONFIG, placeholder="<image>", tokens=TOKENS,
        seed=seed, files={"preprocessor_config.json": {**_PROCESSOR, **processor}},
        prompts={
            "one": ("Look: ", Picture(100, 60), " what is it?"),
            "two": (Picture(31, 97, 1), "and\n", Picture(97, 31, 2), "\n\nare they alike?"),
            "three": ("a", Picture(64, 64, 3), "b", Picture(5, 3, 4), Picture(300, 20, 5), "c"),
        },
    )  # fmt: skip


CASES = (
    _case("idefics3", "Idefics3", seed=6),
    _case("smolvlm", "SmolVLM", seed=14, do_image_splitting=False),
)
