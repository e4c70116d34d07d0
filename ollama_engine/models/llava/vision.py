"""LLaVA's vision part: CLIP's tower up to an early layer, and a projector of two linear maps.

Tensors below `v.` and `mm.`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.nn import clip, vision


@dataclass(frozen=True, kw_only=True)
class VisionOptions(clip.ClipOptions):
    feature_layers: tuple[int, ...]
    """After how many blocks hidden states are taken; those of several are joined to longer vectors."""
    keeps_class: bool
    """Whether the class token's hidden state is a row of the image, too."""
    projector_activation: str
    n_text: int
    """Length of an embedding of the text model."""

    @property
    def n_features(self) -> int:
        """Length of what the projector reads."""
        return self.n_embd * len(self.feature_layers)


def read_options(metadata: Metadata, scope: nn.Scope) -> VisionOptions:
    """Options of the vision part; `scope`: all weights, with the options of the text model. Raises ModelFormatError."""
    tower = clip.read_clip(metadata, scope.below("v"))
    # The first converter of llama.cpp left out the blocks behind the feature layer, and no key says which it is.
    layers = metadata.list("vision.feature_layer", [tower.n_layer])
    if not layers or not all(type(n) is int and 0 <= n <= tower.n_layer for n in layers):
        raise ModelFormatError(
            f"{metadata.key('vision.feature_layer')} is {layers}; expected numbers from 0 to {tower.n_layer}, the "
            "blocks of the vision tower"
        )
    activation = metadata.str("mm.projector_hidden_act", "gelu")
    if activation not in clip.ACTIVATIONS:
        raise UnsupportedModelError(
            f"{metadata.key('mm.projector_hidden_act')} is {activation!r}; supported: {', '.join(clip.ACTIVATIONS)}"
        )
    return VisionOptions(
        **asdict(tower),
        feature_layers=tuple(layers),
        keeps_class=metadata.bool("vision.keeps_class_token", False) and tower.class_token,
        projector_activation=activation,
        n_text=scope.options.n_embd,
    )


class Projector(nn.Module):
    """Hidden states to embeddings of the text model. Tensors below `mm.`."""

    first = nn.Linear("linear_1", "n_features", "n_text")
    second = nn.Linear("linear_2", "n_text", "n_text")
    newline = nn.Weight("image_newline", "n_text", optional=True)
    """The embedding that ends each row of a picture in tiles (LLaVA 1.6)."""

    def forward(self, x: Tensor, layout: Tensor | None, o: VisionOptions) -> Tensor:
        """x [n_features, rows] -> f32 [n_text, rows]; with `layout` i32 [n], these rows and, as the one behind the
        last, the newline, in another order: f32 [n_text, n].
        """
        x = clip.activate(o.projector_activation, self.first.tensor, x, self.first.bias)
        x = vision.wide_product(self.second.tensor, x, self.second.bias)
        if layout is None:
            return x
        return ops.get_rows(ops.concat(x, clip.as_f32(self.newline.tensor, x, o.n_text, 1), 1), layout)


class VisionPart(nn.Module):
    """Everything that a file has for reading images."""

    tower = nn.Part(clip.ClipTower, "v")
    projector = nn.Part(Projector, "mm")

    def forward(self, patches: Tensor, rows: Tensor, layout: Tensor | None, o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n_patches, tiles] -> f32 [n_text, n].

        `rows` i32: which hidden states of all tiles are projected, counted through n_places of each tile.
        """
        states = self.tower.forward(patches, o, o.feature_layers)
        x = states[0]
        for more in states[1:]:
            x = ops.concat(x, more, 0)
        x = ops.get_rows(ops.reshape(x, o.n_features, x.dim(1) * x.dim(2)), rows)
        return self.projector.forward(x, layout, o)
