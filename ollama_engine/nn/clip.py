"""The vision towers of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023), which other models read pictures with.

They differ in a class token before the patches, a norm before the first block, and the activation; the file says which.
Several pictures of one size may be read at once: all tensors then have a third dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.nn.feed_forward import gelu_erf
from ollama_engine.nn.layers import Embedding, LayerNorm
from ollama_engine.nn.module import Blocks, Module, Part, Scope, Weight
from ollama_engine.nn.vision import (
    PatchEmbedding,
    Rotation,
    SquareOptions,
    TowerBlock,
    TowerMLP,
    TowerOptions,
    in_graph,
    read_tower,
    wide_product,
)

__all__ = ["ClipMLP", "ClipOptions", "ClipTower", "activate", "as_f32", "check_activation", "read_clip"]

CLASS_TOKEN = "class_embedding.weight"
ACTIVATIONS = ("quick_gelu", "gelu", "gelu_tanh")


@dataclass(frozen=True, kw_only=True)
class ClipOptions(SquareOptions):
    activation: str
    """One of ACTIVATIONS."""
    class_token: bool

    @property
    def n_places(self) -> int:
        """Rows of hidden states: the class token, and the patches."""
        return self.n_patches + self.class_token


def read_clip(metadata: Metadata, scope: Scope, activation: str = "quick_gelu") -> ClipOptions:
    """Options of the tower whose weights are in `scope`. Raises ModelFormatError, UnsupportedModelError.

    The activation is the key `vision.activation`, or llama.cpp's `use_gelu` and `use_silu`; else `activation`, which is
    CLIP's own by default.
    """
    sizes = read_tower(metadata)
    image_size = metadata.u32("vision.image_size")
    if image_size < sizes["patch_size"]:
        raise ModelFormatError(
            f"vision.image_size is {image_size}; expected at least one patch of {sizes['patch_size']} pixels"
        )
    activation = metadata.str("vision.activation", "gelu_tanh" if metadata.bool("use_gelu", False) else activation)
    check_activation("silu" if metadata.bool("use_silu", False) else activation)
    class_token = scope.prefix + CLASS_TOKEN in scope.weights
    return ClipOptions(**sizes, image_size=image_size, activation=activation, class_token=class_token)


def check_activation(name: str) -> str:
    """The name of an activation that is known here. Raises UnsupportedModelError."""
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(f"the tower's activation is {name!r}; supported: {', '.join(ACTIVATIONS)}")
    return name


def activate(name: str, weight: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """activation(weight x + bias), with one of ACTIVATIONS."""
    if name == "gelu":
        return gelu_erf(wide_product(weight, x, bias), weight)
    return wide_product(weight, x, bias, {"quick_gelu": "gelu_quick", "gelu_tanh": "gelu"}[name])


def as_f32(weight: Tensor, like: Tensor, *shape: int) -> Tensor:
    """A weight of any type of floats as f32 in the graph of `like`; old files store position embeddings as f16."""
    found = in_graph(weight, like, *shape)
    return found if found.dtype == "f32" else ops.cast(found, "f32")


class ClipMLP(TowerMLP):
    """fc2(activation(fc1 x))."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.activation = scope.options.activation

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        x = activate(self.activation, self.fc1.tensor, x, self.fc1.bias)
        return wide_product(self.fc2.tensor, x, self.fc2.bias)


class ClipBlock(TowerBlock):
    """One block. InternVL's scales what attention and the feed-forward part add (Touvron et al. 2021)."""

    mlp = Part(ClipMLP)
    attention_factors = Weight("ls1", "n_embd", optional=True)
    mlp_factors = Weight("ls2", "n_embd", optional=True)

    def forward(self, x: Tensor, o: TowerOptions, mask: Tensor | None = None, rotate: Rotation | None = None) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        added: Tensor = self.attention.forward(self.attn_norm(x, o.norm_eps), o, mask, rotate)
        x = (added * self.attention_factors.tensor if self.attention_factors else added) + x
        added = self.mlp.forward(self.mlp_norm(x, o.norm_eps))
        return (added * self.mlp_factors.tensor if self.mlp_factors else added) + x


class ClipTower(Module):
    """Patches to hidden states. Tensors below `v.`."""

    patch_embedding = PatchEmbedding("patch_embedding")
    class_embedding = Weight("class_embedding", "n_embd", optional=True)
    position_embedding = Embedding("position_embedding", "n_embd", "n_places")
    pre_norm = LayerNorm("pre_layernorm", "n_embd", optional=True)
    blocks = Blocks(ClipBlock, "n_layer")
    post_norm = LayerNorm("post_layernorm", "n_embd", optional=True)

    def forward(
        self, patches: Tensor, o: ClipOptions, layers: Sequence[int], places: Tensor | None = None
    ) -> list[Tensor]:
        """Patches f32 [channels * patch_size^2, n_patches, n] -> for each number of `layers` the hidden states after
        as many blocks, f32 [n_embd, n_places, n]. Blocks behind the last are not computed. `places`: see `embed`.
        """
        x = self.embed(patches, o, places)
        states = {0: x}
        for i, block in enumerate(self.blocks[: max(layers)]):
            states[i + 1] = x = block.forward(x, o)
        return [states[n] for n in layers]

    def embed(self, patches: Tensor, o: ClipOptions, places: Tensor | None = None) -> Tensor:
        """Input of the first block, f32 [n_embd, n_places, n].

        `places`, for a picture of another shape than the table of positions: which part of each place of the table the
        patches have, f32 [n_places, n_patches].
        """
        x = self.patch_embedding(patches)
        if self.class_embedding:
            token = as_f32(self.class_embedding.tensor, x, o.n_embd, 1)
            x = ops.concat(ops.repeat(token, o.n_embd, 1, x.dim(2)), x, 1)
        table = as_f32(self.position_embedding.tensor, x, o.n_embd, o.n_places)
        x = x + (table if places is None else ops.mul_mat(ops.cont(ops.transpose(table)), places))
        return self.pre_norm(x, o.norm_eps) if self.pre_norm else x
