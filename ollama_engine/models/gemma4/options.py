"""Options of Gemma 4's text part: local and global layers have sizes of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.gemma2 import read_cap
from ollama_engine.models.options import Options, extended, read_common, read_experts, read_windows

PERIOD = 6
"""One layer in so many is global, where the file does not say which are."""


@dataclass(frozen=True, kw_only=True)
class LayerOptions(Options):
    """Options of one layer, or those that all layers have."""

    n_per_layer: int
    """Length of a token's embedding for one layer; 0 for a model without these."""
    source: int = 0
    """The layer whose keys and values this one attends to: itself, or an earlier one."""

    @property
    def n_per_layer_all(self) -> int:
        """Length of a token's embeddings for all layers."""
        return self.n_per_layer * self.n_layer


@dataclass(frozen=True, kw_only=True)
class Gemma4Options(LayerOptions):
    """Options of the model; sizes of heads and feed-forward layers are those of `layers`."""

    layers: tuple[LayerOptions, ...]
    bidirectional_images: bool
    """Whether rows of an image attend to each other, in local layers."""

    @property
    def sources(self) -> tuple[int, ...]:
        """For each layer the one whose keys and values it attends to."""
        return tuple(layer.source for layer in self.layers)


def read(metadata: Metadata, n_vocab: int) -> Gemma4Options:
    """Options of a file. Raises ModelFormatError."""
    whole = _read_layer(metadata, n_vocab, _kind(metadata, local=False, layer=0))
    windows = read_windows(metadata, whole.n_layer, PERIOD)
    kinds = [_kind(metadata, local=window is not None, layer=i) for i, window in enumerate(windows)]
    layers = [_read_layer(metadata, n_vocab, kind) for kind in kinds]
    sources = read_sources(metadata, windows)
    return replace(
        extended(
            whole, Gemma4Options, n_per_layer=whole.n_per_layer, layers=(),
            # Other converters have no such key: llama.cpp knows the small models by heart, which are causal.
            bidirectional_images=metadata.bool("vision.bidirectional", whole.n_per_layer == 0),
        ),
        layers=tuple(replace(o, source=source, windows=windows) for o, source in zip(layers, sources, strict=True)),
        windows=windows,
        ropes=tuple(layer.rope for layer in layers),
        logit_softcap=read_cap(metadata, "final_logit_softcapping"),
    )  # fmt: skip


Kind = dict[str, int | float]
"""Values of keys that stand for another number in each kind of layer."""


def _kind(metadata: Metadata, *, local: bool, layer: int) -> Kind:
    """The keys of a layer. Those of local layers have `_swa` behind their names."""
    n_layer = metadata.u32("block_count")
    kv_heads = metadata.u32s("attention.head_count_kv", n_layer)[layer]
    kind: Kind = {"feed_forward_length": metadata.u32s("feed_forward_length", n_layer)[layer]}
    if local:
        head_dim = metadata.u32("attention.key_length_swa", 256)
        return kind | {
            "attention.head_count_kv": kv_heads,
            "attention.key_length": head_dim,
            "attention.value_length": metadata.u32("attention.value_length_swa", head_dim),
            "rope.dimension_count": metadata.u32("rope.dimension_count_swa", head_dim),
            "rope.freq_base": metadata.f32("rope.freq_base_swa", 10000.0),
        }
    # Ollama's converter writes one number for local layers and one for global ones.
    return kind | {"attention.head_count_kv": metadata.u32("attention.global_head_count_kv", 0) or kv_heads}


def _read_layer(metadata: Metadata, n_vocab: int, kind: Kind) -> LayerOptions:
    own = Metadata({**metadata.values, **{metadata.key(name): value for name, value in kind.items()}})
    o = extended(read_common(own, n_vocab), LayerOptions, n_per_layer=metadata.u32(PER_LAYER, 0))
    # Scores are not scaled: queries and keys are normalized.
    return replace(o, attention_scale=1.0, **(read_experts(own) if metadata.u32("expert_count", 0) else {}))


PER_LAYER = "embedding_length_per_layer_input"


def read_sources(metadata: Metadata, windows: tuple[int | None, ...]) -> tuple[int, ...]:
    """For each layer, the one whose keys and values it attends to: the last `attention.shared_kv_layers` take those of
    the last layer before them of their own kind.
    """
    n_own = len(windows) - metadata.u32("attention.shared_kv_layers", 0)
    latest = {window: i for i, window in enumerate(windows[: max(0, n_own)])}
    if missing := set(windows) - set(latest):
        raise ModelFormatError(
            f"attention.shared_kv_layers leaves {n_own} of {len(windows)} layers with keys and values of their own; "
            f"none of them has the window {sorted(str(window) for window in missing)[0]}, which others have"
        )
    return tuple(i if i < n_own else latest[window] for i, window in enumerate(windows))
