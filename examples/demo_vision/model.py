"""The network: transformers' gemma 3 from a tiny config, and the head that helps it to learn.

A picture is 72 x 72 pixels, 9 x 9 patches of 8 x 8 pixels, and 3 x 3 soft tokens: one for each place of a scene.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from .scene import COLOURS, PLACES, SHAPES

__all__ = ["IMAGE_SIZE", "IMAGE_TOKENS", "N_NAMES", "N_VOCAB", "Seeing", "gemma_config"]

N_VOCAB = 512
IMAGE_SIZE = 72
IMAGE_TOKENS = len(PLACES)
N_NAMES = (1 + len(SHAPES), 1 + len(COLOURS), len(PLACES))
"""How many shapes, colours and places there are, with no shape and no colour."""

TEXT = {
    "vocab_size": N_VOCAB, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "query_pre_attn_scalar": 64,
    "max_position_embeddings": 1024, "sliding_window": 256,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 96, "intermediate_size": 288, "num_hidden_layers": 3, "num_attention_heads": 3,
    "image_size": IMAGE_SIZE, "patch_size": 8, "vision_use_head": False,
}  # fmt: skip


def gemma_config(ids: dict[str, int]) -> Gemma3Config:
    """Config of the network; `ids` of the tokens around and for an image, and of the one that ends a turn."""
    return Gemma3Config(
        text_config=TEXT,
        vision_config=VISION,
        mm_tokens_per_image=IMAGE_TOKENS,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
        eos_token_id=[1, ids["<end_of_turn>"]],
        tie_word_embeddings=True,
    )


class Seeing(nn.Module):
    """Gemma 3, and two small parts that help it to learn; no file contains them.

    `head` names shape, colour and place of each soft token: with it, the tower learns to see without words.
    `code` makes a soft token of a shape, a colour and a place: with it, the text part learns to speak without pictures.
    """

    def __init__(self, config: Gemma3Config) -> None:
        super().__init__()
        self.gemma = Gemma3ForConditionalGeneration(config)
        n_embd = config.text_config.hidden_size
        # transformers starts it at zero, where nothing behind it would learn.
        nn.init.normal_(self.projection, std=0.05)
        self.head = nn.Linear(n_embd, sum(N_NAMES))
        self.code = nn.ModuleList(nn.Embedding(n, n_embd) for n in N_NAMES)

    @property
    def projection(self) -> nn.Parameter:
        """From pooled patches to soft tokens: `[width of the tower, n_embd]`."""
        weight: nn.Parameter = self.gemma.model.multi_modal_projector.mm_input_projection_weight
        return weight

    def soft_tokens(self, pixels: Tensor) -> Tensor:
        """Pixels `[pictures, 3, 72, 72]` in [-1, 1] to embeddings `[pictures, 9, n_embd]`."""
        tokens: Tensor = self.gemma.model.get_image_features(pixels, return_dict=True).pooler_output
        return tokens

    def coded(self, shapes: Tensor, colours: Tensor) -> Tensor:
        """Shapes and colours `[pictures, 9]`, 0 for nothing, to embeddings `[pictures, 9, n_embd]`."""
        shape, colour, place = self.code
        out: Tensor = shape(shapes) + colour(colours) + place(torch.arange(len(PLACES)))
        return out

    def seen(self, soft: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of shapes `[pictures, 9, 7]`, colours `[pictures, 9, 9]` and places `[pictures, 9, 9]`.

        The first shape and the first colour are "nothing".
        """
        shapes, colours, where = torch.split(self.head(soft), N_NAMES, dim=-1)
        return shapes, colours, where

    def forward(self, ids: Tensor, soft: Tensor, types: Tensor) -> Tensor:
        """Logits `[rows, positions, n_vocab]`; `types` is 1 where a soft token stands."""
        embedded = self.gemma.get_input_embeddings()(ids)
        embedded = embedded.masked_scatter((types == 1)[..., None], soft)
        out: Tensor = self.gemma(inputs_embeds=embedded, token_type_ids=types, use_cache=False).logits
        return out
