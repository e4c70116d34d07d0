"""Options of models: sizes and constants from a file's metadata, checked.

`read_common` reads what most models have; a model's file replaces what it reads differently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.gguf.next_tokens import n_blocks

MAX_LAYERS = 4096
"""A file that claims more layers is refused: per-layer lists are made before a missing tensor would be noticed."""

MAX_TAPS = 16
"""Most taps that `ops.causal_conv` takes."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sizes and constants from the metadata, named like GGUF's keys but shorter."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    norm_eps: float
    attention_scale: float
    context_length: int
    rope: nn.Rope
    ropes: tuple[nn.Rope | None, ...]
    """The rotation of each layer; None where a layer has no positions."""
    windows: tuple[int | None, ...]
    """Sliding window of each layer in tokens; None: all tokens."""
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    logit_scale: float = 1.0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0
    """Hidden size of one expert."""
    n_ff_shexp: int = 0
    """Hidden size of the expert that all tokens share."""
    normalize_experts: bool = True
    """Whether the weights of the chosen experts are normalized to a sum of 1."""
    expert_scale: float = 1.0
    """What those weights are multiplied by."""
    n_dense: int = 0
    """Blocks without experts, which are the first ones."""
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor of what a part of a block adds."""
    attends: tuple[bool, ...] = ()
    """Whether each layer has attention; empty where all have."""

    @property
    def q_size(self) -> int:
        """Numbers in the queries of one token; differs from n_embd where head_dim is explicit."""
        return self.n_head * self.head_dim

    @property
    def kv_size(self) -> int:
        """Numbers in the keys of one token, and in its values."""
        return self.n_head_kv * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Rows of a fused projection."""
        return self.q_size + 2 * self.kv_size

    @property
    def n_embd_twice(self) -> int:
        """Rows of two hidden states, one behind the other."""
        return 2 * self.n_embd

    @property
    def n_ff_twice(self) -> int:
        """Rows of a fused gate and up projection."""
        return 2 * self.n_ff

    @property
    def n_ff_exp_twice(self) -> int:
        """The same of an expert."""
        return 2 * self.n_ff_exp

    @property
    def n_rope_factors(self) -> int:
        """Length of a tensor of rotary factors."""
        return self.rope.n_dims // 2


OptionsT = TypeVar("OptionsT", bound=Options)


def extended(o: Options, cls: type[OptionsT], **more: Any) -> OptionsT:
    """The same options as an instance of a subclass, whose own fields are `more`."""
    return cls(**{field.name: getattr(o, field.name) for field in fields(Options)}, **more)


RMS_EPS = "attention.layer_norm_rms_epsilon"
LAYER_EPS = "attention.layer_norm_epsilon"


def read_common(
    metadata: Metadata,
    n_vocab: int,
    *,
    rope_mode: str = "neox",
    eps: str = RMS_EPS,
    head_dim: int | None = None,
    longrope: bool = False,
) -> Options:
    """The options that most models have; `n_vocab` counts the rows of the token embedding.

    `head_dim` is used where attention.key_length is absent, instead of n_embd / n_head. Every layer attends to all
    tokens and has the same rotation; a model replaces `ropes` and `windows`. Raises ModelFormatError.
    """
    n_embd, n_head = metadata.u32("embedding_length"), metadata.u32("attention.head_count")
    head_dim = metadata.u32("attention.key_length", head_dim or n_embd // max(1, n_head))
    if min(n_embd, n_head, head_dim) < 1:
        raise ModelFormatError(
            f"embedding_length {n_embd}, attention.head_count {n_head} and the size of a head {head_dim} "
            "(attention.key_length, or the quotient of the two) must not be 0"
        )
    if metadata.u32("attention.value_length", head_dim) != head_dim:
        raise ModelFormatError("attention.key_length and attention.value_length differ; this model has one head size")
    kv_heads = read_sizes(metadata, "attention.head_count_kv", n_head)
    # Some converters write hidden size / heads here, although heads are smaller.
    n_rot = min(metadata.u32("rope.dimension_count", head_dim), head_dim)
    o = Options(
        n_layer=n_blocks(metadata)[0],
        n_embd=n_embd,
        n_ff=max(read_sizes(metadata, "feed_forward_length")),
        n_head=n_head,
        n_head_kv=max(kv_heads),
        head_dim=head_dim,
        n_vocab=n_vocab,
        norm_eps=metadata.f32(eps),
        attention_scale=1 / math.sqrt(head_dim),
        context_length=metadata.u32("context_length"),
        rope=nn.read_rope(metadata, n_rot, rope_mode, longrope=longrope),
        ropes=(),
        windows=(),
    )
    _check(o, eps)
    attends = tuple(n > 0 for n in kv_heads) if 0 in kv_heads else ()
    return replace(o, ropes=(o.rope,) * o.n_layer, windows=(None,) * o.n_layer, attends=attends)


def read_sizes(metadata: Metadata, name: str, default: int | None = None) -> list[int]:
    """A size of each layer: 0 for layers without such a part, the same number for all others."""
    n_used, n_next = n_blocks(metadata)
    n_all = min(n_used + n_next, MAX_LAYERS + 1)
    sizes = metadata.u32s(name, n_all) if default is None else metadata.u32s(name, n_all, [default] * n_all)
    sizes = sizes[:n_used]
    if len({n for n in sizes if n}) > 1:
        raise ModelFormatError(f"{name} differs between layers that have such a part: {sorted(set(sizes))}")
    return sizes or [default or 0]


def read_taps(metadata: Metadata, name: str) -> int:
    """Taps of a causal convolution. Raises ModelFormatError."""
    n_taps = metadata.u32(name)
    if not 2 <= n_taps <= MAX_TAPS:
        raise ModelFormatError(f"{name} is 2 to {MAX_TAPS}, got {n_taps}")
    return n_taps


def _check(o: Options, eps: str) -> None:
    if not 1 <= o.n_layer <= MAX_LAYERS or min(o.n_ff, o.n_head_kv, o.context_length) < 1:
        raise ModelFormatError(
            f"block_count {o.n_layer} is 1 to {MAX_LAYERS}; feed_forward_length {o.n_ff}, "
            f"attention.head_count_kv {o.n_head_kv} and context_length {o.context_length} must not be 0"
        )
    if o.n_head % o.n_head_kv:
        raise ModelFormatError(f"head_count {o.n_head} is no multiple of head_count_kv {o.n_head_kv}")
    n_rot = o.rope.n_dims
    if o.head_dim % 2 or n_rot % 2 or n_rot < 2:
        raise ModelFormatError(f"rotary heads have an even size, got {o.head_dim} with {n_rot} rotated")
    if o.norm_eps < 0:
        raise ModelFormatError(f"{eps} is 0 or more, got {o.norm_eps}")


def read_experts(metadata: Metadata, default: int | None = None) -> dict[str, Any]:
    """The fields of Options about experts.

    `default` is the hidden size of an expert where the file does not say. Without it, feed_forward_length is divided
    by the experts that a token uses, as llama.cpp does.
    """
    n_expert, used = metadata.u32("expert_count"), metadata.u32("expert_used_count")
    share = max(read_sizes(metadata, "feed_forward_length")) // max(1, used)
    hidden = metadata.u32("expert_feed_forward_length", share if default is None else default)
    if not 1 <= used <= n_expert or hidden < 1:
        raise ModelFormatError(
            f"expert_used_count {used} is 1 to expert_count {n_expert}, and expert_feed_forward_length {hidden} above 0"
        )
    return {"n_expert": n_expert, "n_expert_used": used, "n_ff_exp": hidden}


def read_llama(metadata: Metadata, n_vocab: int) -> Options:
    """Options of the Llama family: rope_mode "norm", and experts where the file has some."""
    o = read_common(metadata, n_vocab, rope_mode="norm")
    return replace(o, **read_experts(metadata, o.n_ff)) if metadata.u32("expert_count", 0) else o


def read_windows(
    metadata: Metadata, n_layer: int, period: int, default: int = 0, *, full_first: bool = False
) -> tuple[int | None, ...]:
    """The window of each layer.

    `attention.sliding_window_pattern` is a list with a flag for each layer, or a period. In each period the last layer,
    or the first with `full_first`, attends to all tokens; period 0 makes all layers local. `period` and the window
    `default` apply where the file does not say.
    """
    window = min(metadata.u32("attention.sliding_window", default), 2**31 - 1)
    if not window:
        return (None,) * n_layer
    name = "attention.sliding_window_pattern"
    if isinstance(metadata.values.get(metadata.key(name)), (np.ndarray, list)):
        local = metadata.bools(name, n_layer)
    else:
        period = metadata.u32(name, period)
        full = 0 if full_first else period - 1
        local = [period == 0 or i % period != full for i in range(n_layer)]
    return tuple(window if is_local else None for is_local in local)


def read_local_ropes(
    metadata: Metadata, rope: nn.Rope, windows: tuple[int | None, ...], base: float
) -> tuple[nn.Rope, ...]:
    """The rotation of each layer: `rope` for global ones; local ones have their own base, or `base`, and no scaling."""
    base = metadata.f32("rope.freq_base_swa", base)
    local = nn.Rope(n_dims=rope.n_dims, mode=rope.mode, base=nn.check_base("rope.freq_base_swa", base))
    return tuple(local if window else rope for window in windows)
