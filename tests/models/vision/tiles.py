"""Tiny models that read pictures in tiles: sizes, and how transformers' results are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_CTX, N_TEXT, Case

SIDE, PATCH, MERGE = 28, 7, 2
N_TOKENS = (SIDE // PATCH // MERGE) ** 2
TEXT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": N_CTX, "pad_token_id": 0, "bos_token_id": 317,
    "eos_token_id": 318,
}  # fmt: skip
VISION = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 72}


@dataclass(frozen=True, kw_only=True)
class TiledCase(Case):
    mark: int
    """The id of a token that each picture has once."""
    behind: int = 0
    """Embeddings of the picture behind it."""
    image: int = N_TEXT + 2
    """The id of the token that stands for an embedding."""

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        pixels = inputs["pixel_values"].numpy().reshape(-1, 3, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
        return {"tiles": pixels.transpose(0, 2, 4, 1, 3, 5).reshape(len(pixels), -1, 3 * PATCH**2)}

    def by_picture(self, tiles: Sequence[Any], inputs: Any) -> list[NDArray[np.float32]]:
        """The embeddings of each picture: transformers has the tiles of all pictures as one list."""
        rows = np.concatenate([np.asarray(part.float().numpy()).reshape(-1, part.shape[-1]) for part in tiles])
        ids = inputs["input_ids"][0].numpy()
        ends = [int((ids[:place] == self.image).sum()) + self.behind for place in np.flatnonzero(ids == self.mark)]
        return np.split(rows, ends[:-1])
