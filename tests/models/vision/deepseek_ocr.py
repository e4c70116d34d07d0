"""DeepSeek-OCR. Its published code is not in transformers, but a model of the same parts is: Unlimited-OCR, here
without the window of its attention. Pictures are made by what the published code calls of Pillow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_CTX, N_TEXT, Case, Token
from tests.models.vision.pictures import Picture
from tests.models.vision.published_processor import processor_class

SIDE, TILE, PATCH, MERGE, MOST = 64, 32, 4, 4, 6
TOKENS = (Token("<image>", "image_token"),)
NORMS = ("norm1.weight", "norm2.weight", "neck.1.weight", "neck.3.weight", "layrnorm.weight")


def pixels(picture: Any) -> NDArray[np.float32]:
    """ToTensor and Normalize(0.5, 0.5) of torchvision."""
    levels = np.asarray(picture, np.float32) / np.float32(255)
    return ((levels - np.float32(0.5)) / np.float32(0.5)).transpose(2, 0, 1)


def published(picture: Any) -> tuple[NDArray[np.float32], list[NDArray[np.float32]], list[int]]:
    """A picture on its ground, its tiles, and columns and rows of them."""
    from PIL import Image, ImageOps  # noqa: PLC0415

    whole = pixels(ImageOps.pad(picture, (SIDE, SIDE), color=(127, 127, 127)))
    if max(picture.size) <= TILE:
        return whole, [], [1, 1]
    ratio, best, nearest = picture.width / picture.height, (1, 1), float("inf")
    grids = {(c, r) for n in range(2, MOST + 1) for c in range(1, n + 1) for r in range(1, n + 1) if 2 <= c * r <= MOST}
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(ratio - columns / rows)
        larger = picture.width * picture.height > 0.5 * TILE * TILE * columns * rows
        if distance < nearest or (distance == nearest and larger):
            best, nearest = (columns, rows), distance
    resized = picture.resize((TILE * best[0], TILE * best[1]), Image.Resampling.BICUBIC)
    corners = [(c * TILE, r * TILE) for r in range(best[1]) for c in range(best[0])]
    return whole, [pixels(resized.crop((x, y, x + TILE, y + TILE))) for x, y in corners], list(best)


@dataclass(frozen=True, kw_only=True)
class DeepSeekOcrCase(Case):
    def weight(self, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
        return super().weight(name, shape) + np.float32(name.endswith(NORMS))

    def processor(self, tokenizer: Any) -> Any:
        from transformers import BatchFeature, UnlimitedOcrProcessor  # noqa: PLC0415
        from transformers.image_transforms import convert_to_rgb  # noqa: PLC0415

        class Processor(processor_class("unlimited_ocr.image_processing_unlimited_ocr.UnlimitedOcrImageProcessor")):  # type: ignore[misc]
            def preprocess(self, images: Any, **kwargs: Any) -> Any:
                made = [
                    published(convert_to_rgb(image)) for image in (images if isinstance(images, list) else [images])
                ]
                tiles = [tile for _, some, _ in made for tile in some]
                values = {
                    "pixel_values": np.stack([whole for whole, _, _ in made]),
                    **({"pixel_values_local": np.stack(tiles)} if tiles else {}),
                    "num_local_patches": [len(some) for _, some, _ in made],
                    "patches_grid": [grid for _, _, grid in made],
                }
                lists = ["num_local_patches", "patches_grid"]
                return BatchFeature(values, tensor_type="pt", skip_tensor_conversion=lists)

        images = Processor(size={"height": SIDE, "width": SIDE}, tile_size=TILE)
        return UnlimitedOcrProcessor(images, tokenizer, patch_size=PATCH, downsample_ratio=MERGE)

    def features(self, model: Any, inputs: Any) -> list[NDArray[np.float32]]:
        names = ("pixel_values", "pixel_values_local", "num_local_patches", "patches_grid")
        found = model.get_image_features(**{name: inputs[name] for name in names if name in inputs}).pooler_output
        return [np.asarray(rows.float().numpy()) for rows in found]

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        named = {"whole": "pixel_values", "tiles": "pixel_values_local"}
        return {name: patches(inputs[source].numpy()) for name, source in named.items() if source in inputs}


def patches(squares: NDArray[np.float32]) -> NDArray[np.float32]:
    """Squares [n, 3, side, side] as the tower reads them."""
    n, side = len(squares), squares.shape[-1] // PATCH
    cut = squares.reshape(n, 3, side, PATCH, side, PATCH).transpose(0, 2, 4, 1, 3, 5)
    return cut.reshape(n, side**2, -1)


_TEXT = {
    "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": N_CTX, "n_routed_experts": 8,
    "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
    "mlp_layer_types": ["dense", "sparse", "sparse"], "layer_types": ["full_attention"] * 3, "bos_token_id": 317,
    "eos_token_id": 318, "pad_token_id": 0,
}  # fmt: skip
SAM = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": SIDE, "patch_size": PATCH,
    "window_size": 3, "global_attn_indexes": [1], "mlp_dim": 64, "output_channels": 16, "downsample_channels": [24, 48],
}  # fmt: skip
ENCODER = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
_PROCESSOR = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "tile_size": TILE, "max_patches": MOST}

CASES = (
    DeepSeekOcrCase(
        name="deepseek-ocr",
        model="UnlimitedOcrForConditionalGeneration",
        config={
            "text_config": _TEXT, "vision_config": {"sam_config": SAM, "encoder_config": ENCODER},
            "image_token_id": N_TEXT, "tie_word_embeddings": False,
        },
        placeholder="<image>",
        tokens=TOKENS,
        files={"preprocessor_config.json": _PROCESSOR},
        pictures=(
            *(Picture(*size) for size in ((1, 1), (32, 32), (33, 5), (2000, 10), (640, 427), (333, 1000), (101, 90))),
            *(Picture(45, 67, mode=mode) for mode in ("RGBA", "LA", "L", "P", "1", "CMYK")),
        ),
        seed=16,
        embeddings=1.0,
    ),
)  # fmt: skip
