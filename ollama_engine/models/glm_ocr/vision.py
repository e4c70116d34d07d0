"""GLM-OCR's vision part: a tower with normalized heads for pictures of any size, whose patches merge to embeddings.

Patches have no learned places; they are rotated by row and column. Tensors lie below `v.` and `mm.`, with the names of
Ollama's converter, which are llama.cpp's but for the two kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.qwen3vl.vision import Block, RotatedAttention
from ollama_engine.models.qwen25vl.vision import BlockTowerOptions, read_block_tower
from ollama_engine.nn import vision

MERGER_EPS = 1e-5
"""torch's default, which the published merger has."""


@dataclass(frozen=True, kw_only=True)
class VisionOptions(BlockTowerOptions):
    n_merger_ff: int
    """Hidden size of the block behind the convolution that merges patches."""


def read_options(metadata: Metadata, scope: nn.Scope) -> VisionOptions:
    """Options of the vision part; sizes that few files say are those of its weights. Raises ModelFormatError."""
    up, gate = (scope.weights.get(f"{name}.weight") for name in ("v.blk.0.ffn_up", "mm.gate"))
    sizes = read_block_tower(metadata, scope.options.n_embd, 0 if up is None else up.dim(1), 1e-5)
    return VisionOptions(**sizes, n_merger_ff=0 if gate is None else gate.dim(1))


class NormedRotatedAttention(RotatedAttention):
    """Each head of queries and keys is normalized before it is rotated."""

    q_norm = nn.RMSNorm("attn_q_norm", "head_dim")
    k_norm = nn.RMSNorm("attn_k_norm", "head_dim")

    def normed(self, q: Tensor, k: Tensor, o: BlockTowerOptions) -> tuple[Tensor, Tensor]:
        return self.q_norm(q, o.norm_eps), self.k_norm(k, o.norm_eps)


class GatedBlock(Block):
    attn_norm = nn.RMSNorm("ln1", "n_embd")
    attention = nn.Part(NormedRotatedAttention)
    mlp_norm = nn.RMSNorm("ln2", "n_embd")
    mlp = nn.Part(vision.GatedTowerMLP)


class Tower(nn.Module):
    """Patches to hidden states. Tensors below `v.`."""

    first_frame = vision.PatchEmbedding("patch_embd_0")
    second_frame = vision.PatchEmbedding("patch_embd_1")
    """A patch is two frames deep; a still picture is both of them."""
    bias = nn.Vector("patch_embd.bias", "n_embd")
    blocks = nn.Blocks(GatedBlock, "n_layer")
    norm = nn.RMSNorm("post_ln", "n_embd")

    def forward(self, patches: Tensor, positions: Tensor, o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n], positions i32 [n, 4] (row, column, zeros) -> f32 [n_embd, n]."""
        x = self.first_frame(patches) + self.second_frame(patches) + self.bias.tensor
        for block in self.blocks:
            x = block.forward(x, positions, o)
        return self.norm(x, o.norm_eps)


class MergerMLP(vision.GatedTowerMLP):
    gate = nn.Linear("gate", "n_text", "n_merger_ff")
    up = nn.Linear("up", "n_text", "n_merger_ff")
    down = nn.Linear("down", "n_merger_ff", "n_text")


class ConvolutionMerger(nn.Module):
    """The patches of a block become one embedding. Tensors below `mm.`."""

    kernel = nn.Linear("patch_merger", "merge", "merge", "n_embd", "n_text")
    projection = nn.Linear("model.fc", "n_text", "n_text")
    norm = nn.LayerNorm("post_norm", "n_text")
    mlp = nn.Part(MergerMLP)

    def forward(self, x: Tensor, o: VisionOptions) -> Tensor:
        """x [n_embd, n], block by block -> f32 [n_text, n / merge^2]."""
        # The kernel's numbers lie patch by patch for each number of a hidden state.
        x = ops.cont(ops.permute(ops.reshape(x, o.n_embd, o.merge**2, x.dim(1) // o.merge**2), 1, 0, 2, 3))
        x = ops.reshape(x, o.n_merged, x.dim(2))
        kernel = vision.in_graph(self.kernel.tensor, x, o.n_merged, o.n_text)
        x = vision.wide_product(kernel, x, self.kernel.bias, stored=self.kernel.tensor)
        x = self.norm(vision.wide_product(self.projection.tensor, x, self.projection.bias), MERGER_EPS)
        return self.mlp.forward(nn.gelu_erf(x, self.projection.tensor))


class VisionPart(nn.Module):
    """Everything that a file has for reading images."""

    tower = nn.Part(Tower, "v")
    merger = nn.Part(ConvolutionMerger, "mm")

    def forward(self, patches: Tensor, positions: Tensor, o: VisionOptions) -> Tensor:
        """Patches and positions as `Tower.forward` has them -> f32 [n_text, n / merge^2], row by row."""
        return self.merger.forward(self.tower.forward(patches, positions, o), o)
