"""Blocks of vision towers: vision transformers (ViT, Dosovitskiy et al. 2020), such as CLIP's and SigLIP's.

A tower reads patches of pixels as `multimodal.pixels.unfold` cuts them, and attends from each patch to all others. Its
blocks norm before attention and before the feed-forward part, and have biases where the file does. The names of tensors
are those of Gemma 3's tower; another family declares its own in a subclass, as with any `nn.Module`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.amx import amx_allowed, amx_attention, amx_product, amx_takes
from ollama_engine.ml.ops.operands import lies_on_cpu, on_cpu_alone
from ollama_engine.ml.weights.kernel_choice import product_of_many
from ollama_engine.nn.feed_forward import gelu, quick_gelu
from ollama_engine.nn.layers import Biased, LayerNorm, Linear, Norm
from ollama_engine.nn.module import Module, Part

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context

Rotation = Callable[[Tensor], Tensor]
"""Queries or keys [head_dim, heads, n] -> the same, rotated by the places of their patches."""

MAX_LAYERS = 1024
CHANNELS = 3
LARGEST_HEAD = 256
"""Numbers in a head that AMX attention takes at most."""
LANES = 16
"""ggml's fast kernel of attention takes values whose heads are a multiple of it (with AVX-512; others divide it)."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "gelu": gelu,
    "gelu_quick": quick_gelu,
}


@dataclass(frozen=True, kw_only=True)
class TowerOptions:
    """Sizes of a vision tower. A family adds its own fields in a subclass."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    norm_eps: float
    patch_size: int
    n_channels: int = 3

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.n_embd // self.n_head

    @property
    def attention_scale(self) -> float:
        """Factor of the attention scores."""
        return 1 / math.sqrt(self.head_dim)


@dataclass(frozen=True, kw_only=True)
class SquareOptions(TowerOptions):
    """Sizes of a tower whose pictures, or tiles of them, are squares of one size."""

    image_size: int
    """Side of the square in pixels."""

    @property
    def grid(self) -> int:
        """Patches along a side."""
        return self.image_size // self.patch_size

    @property
    def n_patches(self) -> int:
        """Patches of a square."""
        return self.grid**2

    @property
    def n_places(self) -> int:
        """Rows of hidden states."""
        return self.n_patches


def read_tower(metadata: Metadata, *, eps: float | None = None, n_ff: int | None = None) -> dict[str, Any]:
    """The fields of TowerOptions from the keys below `vision.`; `eps` is used where the file has none.

    `n_ff` is the width of the tensors, for families whose files say another one, or none.

    Raises ModelFormatError for a key that is missing, and for sizes that do not fit each other.
    """
    fields: dict[str, Any] = {
        "n_layer": metadata.u32("vision.block_count"),
        "n_embd": metadata.u32("vision.embedding_length"),
        "n_ff": metadata.u32("vision.feed_forward_length") if n_ff is None else n_ff,
        "n_head": metadata.u32("vision.attention.head_count"),
        "patch_size": metadata.u32("vision.patch_size"),
        "n_channels": metadata.u32("vision.num_channels", 3),
    }
    key = "vision.attention.layer_norm_epsilon"
    epsilon = metadata.f32(key) if eps is None else metadata.f32(key, eps)
    zero = [name for name, value in fields.items() if value < 1]
    if fields["n_channels"] != CHANNELS:
        raise ModelFormatError(
            f"{metadata.key('vision.num_channels')} is {fields['n_channels']}; pictures have {CHANNELS}"
        )
    if zero or fields["n_layer"] > MAX_LAYERS or fields["n_embd"] % fields["n_head"] or epsilon < 0:
        raise ModelFormatError(
            f"sizes of the vision tower do not fit: {fields}, {key} {epsilon:g}; expected 1 to {MAX_LAYERS} layers, "
            "embeddings that divide among the heads, and an epsilon of 0 or more"
        )
    return {**fields, "norm_eps": epsilon}


def read_normalization(
    metadata: Metadata, mean: Sequence[float], std: Sequence[float]
) -> tuple[list[float], list[float]]:
    """(mean, deviation) of red, green and blue that pictures are normalized by; `mean` and `std` where the file has
    none. Raises ModelFormatError for a deviation of 0 or less.
    """
    found = metadata.f32s("vision.image_std", 3, list(std))
    if min(found) <= 0:
        raise ModelFormatError(f"{metadata.key('vision.image_std')} is above 0, got {found}")
    return metadata.f32s("vision.image_mean", 3, list(mean)), found


class PatchEmbedding(Biased):
    """The convolution that makes an embedding of each patch, as a product.

    Patches do not overlap, so the kernel is a matrix of their pixels: f32 [channels * size * size, n] -> [n_embd, n].
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, "patch_size", "patch_size", "n_channels", "n_embd")

    def __call__(self, patches: Tensor) -> Tensor:
        kernel = in_graph(self.tensor, patches, patches.dim(0), self.tensor.dim(3))
        return wide_product(kernel, patches, self.bias, stored=self.tensor)


def in_graph(weight: Tensor, like: Tensor, *shape: int) -> Tensor:
    """A weight as an operand of the graph that `like` belongs to, in another shape of as many elements."""
    return ops.view(weight, shape, ctx=cast("Context", like.owner))


def full_attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, *, parts: int = 2
) -> Tensor:
    """softmax(scale q k + mask) v without a cache: every row attends to every row that the mask shows.

    q f32 [head_dim, heads, n], k and v [head_dim, kv_heads, n], mask f16 [n, n] -> f32 [head_dim * heads, n].
    Without a mask there may be a fourth dimension, of pictures: rows attend to those of their own. `parts`: see
    `parts_for`.
    """
    if q.dim(3) > 1:
        return _attention_in_pictures(q, k, v, scale, parts)
    heads, value_dim = q.dim(1), v.dim(0)
    with_amx = mask is None and heads == k.dim(1) and max(q.dim(0), value_dim) <= LARGEST_HEAD and amx_allowed()
    with_amx = with_amx and on_cpu_alone(q)  # other devices attend by themselves
    if not with_amx and value_dim % LANES:
        # Queries and keys, too: 36 ms in place of 46 for 1,200 patches and 16 heads of 72 (Zen 5, 2 threads).
        q, k, v = (ops.pad(t, (0, -t.dim(0) % LANES)) for t in (q, k, v))
    q, k, v = (ops.permute(t, 0, 2, 1, 3) for t in (q, k, v))
    out = amx_attention(q, k, v, scale, parts=parts) if with_amx else ops.flash_attention(q, k, v, mask, scale)
    if out.dim(0) != value_dim:
        shape, strides = (value_dim, heads, out.dim(2)), (out.stride(1), out.stride(2))
        out = ops.cont(ops.view(out, shape, strides))
    return ops.reshape(out, value_dim * heads, out.dim(2))


def _attention_in_pictures(q: Tensor, k: Tensor, v: Tensor, scale: float, parts: int) -> Tensor:
    """`full_attention` of q, k and v [head_dim, heads, n, pictures] -> f32 [head_dim * heads, n, pictures].

    Heads of different pictures are as separate as those of one.
    """
    size, heads, n, pictures = (q.dim(i) for i in range(4))
    folded = [ops.cont(ops.permute(ops.reshape(t, size * heads, n, pictures), 0, 2, 1, 3)) for t in (q, k, v)]
    q, k, v = (ops.reshape(t, size, heads * pictures, n) for t in folded)
    out = full_attention(q, k, v, scale, parts=parts)
    return ops.cont(ops.permute(ops.reshape(out, size * heads, pictures, n), 0, 2, 1, 3))


def parts_for(weight: Tensor) -> int:
    """Number of bfloat16 terms whose sum stands for each operand, where AMX computes: 1 for bfloat16 weights, else 2.

    A model in bfloat16 was trained so, and ggml rounds its activations, too. Two are as precise as float32.
    """
    return 1 if weight.dtype == "bf16" else 2


def wide_product(
    weight: Tensor, x: Tensor, bias: Tensor | None = None, activation: str = "none", *, stored: Tensor | None = None
) -> Tensor:
    """activation(weight x + bias) for thousands of columns: [in, out], f32 [in, n, pictures], [out] -> f32 [out, n,
    pictures].

    Activations: "none", "gelu" (the tanh form) and "gelu_quick". `stored` is the weight that `weight` is a view of.
    """
    if x.dim(2) > 1:
        y = wide_product(weight, ops.reshape(x, x.dim(0), x.dim(1) * x.dim(2)), bias, activation, stored=stored)
        return ops.reshape(y, y.dim(0), x.dim(1), x.dim(2))
    if amx_allowed() and amx_takes(weight) and lies_on_cpu(weight if stored is None else stored):
        return amx_product(weight, x, bias, parts=parts_for(weight), activation=activation)
    y = product_of_many(weight, x)
    y = y if bias is None else y + bias
    return ACTIVATIONS[activation](y)


class TowerAttention(Module):
    """Attention of all patches to all, or to those that a mask shows."""

    q = Linear("attn_q", "n_embd", "n_embd")
    k = Linear("attn_k", "n_embd", "n_embd")
    v = Linear("attn_v", "n_embd", "n_embd")
    output = Linear("attn_output", "n_embd", "n_embd")

    def forward(self, x: Tensor, o: TowerOptions, mask: Tensor | None = None, rotate: Rotation | None = None) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]; with a third dimension, one picture for each index in it."""
        q, k, v = (_heads(wide_product(p.tensor, x, p.bias), o) for p in (self.q, self.k, self.v))
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        out = full_attention(q, k, v, o.attention_scale, mask, parts=parts_for(self.q.tensor))
        return wide_product(self.output.tensor, out, self.output.bias)


def _heads(x: Tensor, o: TowerOptions) -> Tensor:
    return ops.reshape(x, o.head_dim, x.dim(0) // o.head_dim, x.dim(1), x.dim(2))


class TowerMLP(Module):
    """fc2(activation(fc1 x))."""

    activation = "gelu"
    """As in `wide_product`: the tanh form of GELU."""

    fc1 = Linear("mlp.fc1", "n_embd", "n_ff")
    fc2 = Linear("mlp.fc2", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        x = wide_product(self.fc1.tensor, x, self.fc1.bias, self.activation)
        return wide_product(self.fc2.tensor, x, self.fc2.bias)


class GatedTowerMLP(Module):
    """SwiGLU, as `nn.GatedMLP`, for thousands of columns."""

    gate = Linear("ffn_gate", "n_embd", "n_ff")
    up = Linear("ffn_up", "n_embd", "n_ff")
    down = Linear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        gate, up = (wide_product(p.tensor, x, p.bias) for p in (self.gate, self.up))
        return wide_product(self.down.tensor, ops.glu(gate, up), self.down.bias)


class TowerBlock(Module):
    """One block: attention, then feed-forward, each after a norm and with a residual."""

    attn_norm: Norm = LayerNorm("layer_norm1", "n_embd")
    attention: Part[Any] = Part(TowerAttention)
    mlp_norm: Norm = LayerNorm("layer_norm2", "n_embd")
    mlp: Part[Any] = Part(TowerMLP)

    def forward(self, x: Tensor, o: TowerOptions, mask: Tensor | None = None, rotate: Rotation | None = None) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        x = self.attention.forward(self.attn_norm(x, o.norm_eps), o, mask, rotate) + x
        out: Tensor = self.mlp.forward(self.mlp_norm(x, o.norm_eps)) + x
        return out


def average_pool(x: Tensor, columns: int, size: int) -> Tensor:
    """Means of squares of `size` times `size` patches: x f32 [n_embd, columns * rows] -> [n_embd, n / size^2].

    Patches come row by row; `size` divides columns and rows.
    """
    n_embd, rows = x.dim(0), x.dim(1) // columns
    # One axis after the other: `mean` takes the first dimension.
    x = ops.cont(ops.permute(ops.reshape(x, n_embd, size, columns // size, rows), 1, 0, 2, 3))
    x = ops.reshape(ops.mean(x), n_embd, columns // size, size, rows // size)
    x = ops.cont(ops.permute(x, 1, 2, 0, 3))
    return ops.reshape(ops.mean(x), n_embd, columns // size * (rows // size))


def join_squares(x: Tensor, columns: int, size: int) -> Tensor:
    """The patches of each square of `size` times `size`, joined row by row (pixel shuffle).

    x f32 [n_embd, columns * rows, n] -> [n_embd * size^2, columns * rows / size^2 * n], squares row by row, too.
    """
    n_embd, across, lines = x.dim(0), columns // size, x.dim(1) // columns * x.dim(2)
    x = ops.permute(ops.reshape(x, n_embd * size, across, size, lines // size), 0, 2, 1, 3)
    return ops.reshape(ops.cont(x), n_embd * size**2, across * lines // size)
