"""Qwen2.5-VL's vision part: a tower with attention within windows, whose patches merge to embeddings of the text model.

Qwen2-VL has the tower before it. Sources: Bai et al. 2025 (arXiv:2502.13923), Wang et al. 2024 (arXiv:2409.12191).
Tensors below `v.`, as Ollama's converter names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.qwen25vl.windows import WindowGroup
from ollama_engine.nn import vision

FULL_LAYERS = "vision.fullatt_block_indexes"


@dataclass(frozen=True, kw_only=True)
class BlockTowerOptions(vision.TowerOptions):
    """Sizes of a tower whose patches turn by row and column, and become embeddings block by block."""

    merge: int
    """Side of the square of patches that becomes one embedding: a block."""
    rope_base: float
    n_text: int
    """Length of an embedding of the text model."""

    @property
    def n_merged(self) -> int:
        """Length of the joined patches of a block."""
        return self.n_embd * self.merge**2

    @property
    def n_embd_thrice(self) -> int:
        """Rows of a matrix of queries, keys and values."""
        return 3 * self.n_embd


def read_block_tower(metadata: Metadata, n_text: int, n_ff: int, eps: float) -> dict[str, Any]:
    """The fields of BlockTowerOptions; `n_ff` and `eps` as `vision.read_tower` takes them. Raises ModelFormatError."""
    sizes = vision.read_tower(metadata, eps=eps, n_ff=n_ff)
    merge = metadata.u32("vision.spatial_merge_size", 2)
    if merge < 1:
        raise ModelFormatError(f"{metadata.key('vision.spatial_merge_size')} is {merge}, expected at least 1")
    if sizes["n_embd"] // sizes["n_head"] % 4:
        raise ModelFormatError(
            f"heads of the vision tower have {sizes['n_embd'] // sizes['n_head']} dimensions (vision.embedding_length "
            "/ vision.attention.head_count); a rotation with two axes needs a multiple of 4"
        )
    base = nn.check_base("vision.rope.freq_base", metadata.f32("vision.rope.freq_base", 10000.0))
    return {**sizes, "merge": merge, "rope_base": base, "n_text": n_text}


@dataclass(frozen=True, kw_only=True)
class VisionOptions(BlockTowerOptions):
    window: int
    """Side of a window in blocks."""
    full_layers: frozenset[int]
    """Layers whose patches attend to the whole image."""
    gated: bool
    """Whether feed-forward blocks have a gate, as in Qwen2.5-VL; Qwen2-VL has plain ones, LayerNorm and no windows."""


def read_options(metadata: Metadata, n_text: int, n_ff: int, *, gated: bool = True) -> VisionOptions:
    """Options of the vision part; `n_ff` is the width of its tensors, which few files say. Raises ModelFormatError."""
    sizes = read_block_tower(metadata, n_text, n_ff, 1e-6)
    pixels, block = metadata.u32("vision.window_size", 112), sizes["merge"] * sizes["patch_size"]
    if pixels < block:
        raise ModelFormatError(
            f"{metadata.key('vision.window_size')} is {pixels} pixels, expected at least a block of {sizes['merge']} "
            f"patches (vision.spatial_merge_size) of {sizes['patch_size']} pixels (vision.patch_size)"
        )
    return VisionOptions(
        **sizes,
        window=pixels // block,
        full_layers=_read_full_layers(metadata, sizes["n_layer"]) if gated else frozenset(range(sizes["n_layer"])),
        gated=gated,
    )


def _read_full_layers(metadata: Metadata, n_layer: int) -> frozenset[int]:
    """Their numbers, or every so many layers; without either every eighth, as in all that was published."""
    listed = metadata.list(FULL_LAYERS, [])
    if listed:
        if not all(type(n) is int and 0 <= n < n_layer for n in listed):
            raise ModelFormatError(f"{metadata.key(FULL_LAYERS)} is {listed}, expected layers below {n_layer}")
        return frozenset(listed)
    period = metadata.u32("vision.n_wa_pattern", 8)
    return frozenset(range(period - 1, n_layer, period) if period else range(n_layer))


class WindowAttention(nn.Module):
    """Attention of patches to those of their window, or to the whole image."""

    q = nn.Linear("attn_q", "n_embd", "n_embd")
    k = nn.Linear("attn_k", "n_embd", "n_embd")
    v = nn.Linear("attn_v", "n_embd", "n_embd")
    output = nn.Linear("attn_out", "n_embd", "n_embd")

    def forward(self, x: Tensor, positions: Tensor, groups: tuple[WindowGroup, ...], o: VisionOptions) -> Tensor:
        """x [n_embd, n], positions i32 [n, 4] -> [n_embd, n]; one window of all patches is attention to the image."""
        n = x.dim(1)
        q, k, v = (
            ops.reshape(vision.wide_product(p.tensor, x, p.bias), o.head_dim, o.n_head, n)
            for p in (self.q, self.k, self.v)
        )
        q, k = rotate(q, positions, o.rope_base), rotate(k, positions, o.rope_base)
        out: Tensor | None = None
        begin = 0
        for count, blocks in groups:
            size = blocks * o.merge**2
            q_part, k_part, v_part = (_windows(t, begin, size, count) for t in (q, k, v))
            part = vision.full_attention(q_part, k_part, v_part, o.attention_scale)
            part = ops.reshape(part, o.n_embd, size * count)
            out = part if out is None else ops.concat(out, part, 1)
            begin += size * count
        assert out is not None, "an image has a window"
        return vision.wide_product(self.output.tensor, out, self.output.bias)


def rotate(heads: Tensor, positions: Tensor, base: float) -> Tensor:
    """The first half of the pairs turns by the row of a patch, the second by its column, both from the base on."""
    quarter = heads.dim(0) // 4
    return ops.rope_multi(heads, positions, 2 * quarter, (quarter, quarter), mode="vision", freq_base=base)


def _windows(t: Tensor, begin: int, size: int, count: int) -> Tensor:
    """Rows [begin, begin + size * count) of [head_dim, heads, n] as [head_dim, heads, size, count]."""
    row = t.stride(2)
    return ops.view(t, (t.dim(0), t.dim(1), size, count), (t.stride(1), row, row * size), begin * row)


class Block(nn.Module):
    """One block: attention, then SwiGLU with biases, each after a norm and with a residual."""

    attn_norm: nn.Norm = nn.RMSNorm("ln1", "n_embd")
    attention = nn.Part(WindowAttention)
    mlp_norm: nn.Norm = nn.RMSNorm("ln2", "n_embd")
    mlp: nn.Part[Any] = nn.Part(vision.GatedTowerMLP)

    def forward(self, x: Tensor, positions: Tensor, groups: tuple[WindowGroup, ...], o: VisionOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        x = self.attention.forward(self.attn_norm(x, o.norm_eps), positions, groups, o) + x
        out: Tensor = self.mlp.forward(self.mlp_norm(x, o.norm_eps)) + x
        return out


class PlainMLP(vision.TowerMLP):
    activation = "gelu_quick"

    fc1 = nn.Linear("ffn_up", "n_embd", "n_ff")
    fc2 = nn.Linear("ffn_down", "n_ff", "n_embd")


class PlainBlock(Block):
    """A block of Qwen2-VL, with another norm and no gate."""

    attn_norm = nn.LayerNorm("ln1", "n_embd")
    mlp_norm = nn.LayerNorm("ln2", "n_embd")
    mlp = nn.Part(PlainMLP)


def make_block(scope: nn.Scope) -> Block:
    """The kind that the file has."""
    return Block(scope) if scope.options.gated else PlainBlock(scope)


class Merger(nn.Module):
    """The patches of a block, joined, become one embedding."""

    norm: nn.Norm = nn.RMSNorm("ln_q", "n_embd")
    up = nn.Linear("mlp.0", "n_merged", "n_merged")
    down = nn.Linear("mlp.2", "n_merged", "n_text")

    def forward(self, x: Tensor, o: VisionOptions) -> Tensor:
        """x [n_embd, n] -> [n_text, n / merge^2]."""
        x = self.norm(x, o.norm_eps)
        x = ops.reshape(x, o.n_merged, x.dim(1) // o.merge**2)
        x = nn.gelu_erf(vision.wide_product(self.up.tensor, x, self.up.bias), self.up.tensor)
        return vision.wide_product(self.down.tensor, x, self.down.bias)


class PlainMerger(Merger):
    """The merger of Qwen2-VL."""

    norm = nn.LayerNorm("ln_q", "n_embd")


def make_merger(scope: nn.Scope) -> Merger:
    """The kind that the file has."""
    return Merger(scope) if scope.options.gated else PlainMerger(scope)


class Tower(nn.Module):
    """Patches to embeddings. Tensors below `v.`."""

    first_frame = vision.PatchEmbedding("patch_embd_0")
    second_frame = vision.PatchEmbedding("patch_embd_1")
    """A patch is two frames deep; a still picture is both of them."""
    blocks = nn.Blocks(make_block, "n_layer")
    merger = nn.Part(make_merger, "merger")

    def forward(
        self, patches: Tensor, positions: Tensor, places: Tensor, groups: tuple[WindowGroup, ...], o: VisionOptions
    ) -> Tensor:
        """The embeddings of an image, row by row.

        Args:
            patches: f32 [channels * patch_size^2, n], window by window.
            positions: i32 [n, 4], row, column and two axes more that nothing turns by.
            places: i32 [n / merge^2], where each block of the image is among those of the windows.
            groups: the windows, in their order.
            o: the options.

        Returns:
            f32 [n_text, n / merge^2].
        """
        x = self.first_frame(patches) + self.second_frame(patches)
        whole = (WindowGroup(1, places.dim(0)),)
        for i, block in enumerate(self.blocks):
            x = block.forward(x, positions, whole if i in o.full_layers else groups, o)
        return ops.get_rows(self.merger.forward(x, o), places)
