"""Gemma 4 that reads images: a large model, whose images are bidirectional in local layers, a small one, and the 12B
model, which has no tower.
"""

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


@dataclass(frozen=True, kw_only=True)
class UnifiedCase(Gemma4Case):
    """The 12B model. transformers' image processor for it wants torchvision; it differs by what `processor` does here:
    the patches of a block are one patch.
    """

    def processor(self, tokenizer: Any) -> Any:
        from transformers import Gemma4UnifiedProcessor  # noqa: PLC0415
        from transformers.models.gemma4 import image_processing_pil_gemma4 as slow  # noqa: PLC0415

        class Blocks(slow.Gemma4ImageProcessorPil):  # type: ignore[misc] (transformers has no types)
            def _preprocess(self, *args: Any, **kwargs: Any) -> Any:
                made = super()._preprocess(*args, **kwargs)
                blocks = [
                    _blocks(np.asarray(patches), np.asarray(places))
                    for patches, places in zip(made["pixel_values"], made["image_position_ids"], strict=True)
                ]
                made["pixel_values"], made["image_position_ids"] = (
                    np.stack(part) for part in zip(*blocks, strict=True)
                )
                return made.convert_to_tensors("pt")

        slow._SUPPORTED_SOFT_TOKENS = (MOST,)
        images = Blocks(patch_size=PATCH, pooling_kernel_size=POOL, max_soft_tokens=MOST)
        tokenizer.pad_token = tokenizer.eos_token
        images_only = type(
            "ImagesOnly", (Gemma4UnifiedProcessor,), {"check_argument_for_proper_class": lambda *_: None}
        )
        return images_only(None, images, tokenizer, None)

    def adapt(self, model: Any) -> None:
        """Images are bidirectional in local layers only, as they are where `generate` makes the masks, and in the
        other models; transformers' `forward` makes those of all layers so (its issue 46711).
        """
        from transformers.models.gemma4_unified import modeling_gemma4_unified as module  # noqa: PLC0415

        plain = module.create_masks_for_generate

        def masks(**kwargs: Any) -> Any:
            images = kwargs.get("block_sequence_ids") is not None
            return (module.create_masks_for_vision_model if images else plain)(**kwargs)

        module.create_masks_for_generate = masks

    def counts(self, inputs: Any) -> list[int]:
        return [int((p[:, 0] >= 0).sum()) for p in inputs["image_position_ids"]]

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        places = inputs["image_position_ids"][0].numpy()
        n, side = int((places[:, 0] >= 0).sum()), PATCH * POOL
        patches = inputs["pixel_values"][0].numpy()[:n].reshape(n, side, side, 3).transpose(0, 3, 1, 2)
        return {"patches": patches.reshape(n, -1), "places": places[:n].T}


def _blocks(patches: NDArray[Any], places: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Patches [MOST * POOL^2, pixels] and their columns and rows, -1 for padding -> the same of blocks, [MOST, ...].

    Pixels are (row, column, channel) before and after.
    """
    n = int((places[:, 0] >= 0).sum())
    columns, rows = places[:n].max(axis=0) + 1
    grid = patches[:n].reshape(rows // POOL, POOL, columns // POOL, POOL, PATCH, PATCH, 3)
    blocks = grid.transpose(0, 2, 1, 4, 3, 5, 6).reshape(n // POOL**2, -1)
    whole = np.zeros((MOST, blocks.shape[1]), patches.dtype)
    numbers = np.full((MOST, 2), -1, places.dtype)
    whole[: len(blocks)] = blocks
    numbers[: len(blocks)] = np.stack(np.divmod(np.arange(len(blocks)), columns // POOL)[::-1], axis=1)
    return whole, numbers


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
_UNIFIED = {name: value for name, value in _LARGE.items() if name != "hidden_size_per_layer_input"}
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
    UnifiedCase(
        name="gemma4-unified",
        # A window that is smaller than an image, whose rows then do not see all of it.
        config={
            **_OUTER,
            "text_config": {**_UNIFIED, "sliding_window": 10},
            "vision_config": {
                "patch_size": PATCH,
                "pooling_kernel_size": POOL,
                "mm_embed_dim": 40,
                "mm_posemb_size": 32,
                "output_proj_dims": 40,
            },
        },
        seed=3,
        **{**_SHARED, "model": "Gemma4UnifiedForConditionalGeneration"},
    ),
)
