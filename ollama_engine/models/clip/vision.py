"""Pooling of CLIP and SigLIP: hidden states of the tower to one vector. Tensors below `v.` and `mm.`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.nn import clip, vision


@dataclass(frozen=True, kw_only=True)
class HeadOptions(clip.ClipOptions):
    n_vector: int
    """Length of an image's vector."""


def read_head_options(metadata: Metadata, scope: nn.Scope) -> HeadOptions:
    """Options of a tower with a head; `scope`: all weights. Raises ModelFormatError."""
    tower = clip.read_clip(metadata, scope.below("v"))
    n_vector = metadata.u32("vision.projection_dim", tower.n_embd)
    if n_vector < 1:
        raise ModelFormatError(f"{metadata.key('vision.projection_dim')} is {n_vector}; expected at least 1")
    return HeadOptions(**asdict(tower), n_vector=n_vector)


class Head(nn.Module):
    """A tower, and what makes one vector of its hidden states."""

    tower = nn.Part(clip.ClipTower, "v")

    def forward(self, patches: Tensor, o: HeadOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n_patches] -> f32 [n_vector, 1]."""
        raise NotImplementedError


class ClassVector(Head):
    """CLIP: the class token after all blocks, normed and projected."""

    projection = nn.Linear("mm.visual_projection", "n_embd", "n_vector")

    def forward(self, patches: Tensor, o: HeadOptions) -> Tensor:
        (x,) = self.tower.forward(patches, o, [o.n_layer])
        x = ops.cont(ops.view(x, (o.n_embd, 1)))
        return self.projection(self.tower.post_norm(x, o.norm_eps))


class PoolingHead(nn.Module):
    """A learned query attends to all patches; then a feed-forward block with a residual. Tensors below `v.head.`."""

    probe = nn.Weight("probe", "n_embd")
    q = nn.Linear("attn_q", "n_embd", "n_embd")
    k = nn.Linear("attn_k", "n_embd", "n_embd")
    v = nn.Linear("attn_v", "n_embd", "n_embd")
    output = nn.Linear("attn_output", "n_embd", "n_embd")
    norm = nn.LayerNorm("layernorm", "n_embd")
    mlp = nn.Part(clip.ClipMLP)

    def forward(self, x: Tensor, o: HeadOptions) -> Tensor:
        """x [n_embd, n] -> f32 [n_embd, 1]."""
        probe = ops.scale(clip.as_f32(self.probe.tensor, x, o.n_embd, 1), 1)
        q, k, v = (ops.reshape(t, o.head_dim, o.n_head, t.dim(1)) for t in (self.q(probe), self.k(x), self.v(x)))
        x = self.output(vision.full_attention(q, k, v, o.attention_scale))
        out: Tensor = self.mlp.forward(self.norm(x, o.norm_eps)) + x
        return out


class PooledVector(Head):
    """SigLIP: the patches after all blocks, normed and pooled."""

    head = nn.Part(PoolingHead, "v.head")

    def forward(self, patches: Tensor, o: HeadOptions) -> Tensor:
        (x,) = self.tower.forward(patches, o, [o.n_layer])
        out: Tensor = self.head.forward(self.tower.post_norm(x, o.norm_eps), o)
        return out
