"""Which type a tensor gets under each preset: llama-quantize's rules as tables.

A preset has a base type for all matrices. Some kinds of tensors deserve more bits, often in some of the layers only;
`TABLES` says which, by kind and preset. Source: llama_tensor_get_type_impl in llama.cpp's src/llama-quant.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["ALIASES", "FALLBACK", "PRESETS", "Place", "Preset", "output_type", "tensor_kind", "wanted_type"]


@dataclass(frozen=True)
class Preset:
    """`file_type` is `general.file_type`; `base` the type of matrices that no rule names."""

    name: str
    file_type: int
    base: str


PRESETS: Final = {
    preset.name: preset
    for preset in (
        Preset("F32", 0, "f32"), Preset("F16", 1, "f16"), Preset("BF16", 32, "bf16"),
        Preset("Q4_0", 2, "q4_0"), Preset("Q4_1", 3, "q4_1"), Preset("Q5_0", 8, "q5_0"), Preset("Q5_1", 9, "q5_1"),
        Preset("Q8_0", 7, "q8_0"), Preset("Q2_K", 10, "q2_K"), Preset("Q2_K_S", 21, "q2_K"),
        Preset("Q3_K_S", 11, "q3_K"), Preset("Q3_K_M", 12, "q3_K"), Preset("Q3_K_L", 13, "q3_K"),
        Preset("Q4_K_S", 14, "q4_K"), Preset("Q4_K_M", 15, "q4_K"), Preset("Q5_K_S", 16, "q5_K"),
        Preset("Q5_K_M", 17, "q5_K"), Preset("Q6_K", 18, "q6_K"), Preset("IQ4_NL", 25, "iq4_nl"),
        Preset("IQ4_XS", 30, "iq4_xs"), Preset("MXFP4_MOE", 38, "mxfp4"),
    )
}  # fmt: skip
ALIASES: Final = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}

FALLBACK: Final = {
    "q2_K": "q4_0", "q3_K": "q4_0", "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0", "iq4_xs": "iq4_nl",
}  # fmt: skip
"""Types for rows that do not divide into blocks of 256; rows that still do not fit become f16."""


@dataclass(frozen=True)
class Place:
    """Where a tensor stands. `index` counts the tensors of its kind before it (for experts it is the layer), `count`
    all of them, as llama-quantize counts: value projections by tensors, feed-forward matrices by layers.
    """

    index: int
    count: int
    n_gqa: int
    """Query heads for each key head."""
    n_expert: int
    has_imatrix: bool
    is_70b: bool

    @property
    def more_bits(self) -> bool:
        """The first eighth, the last eighth, and every third between."""
        eighth = self.count // 8
        return self.index < eighth or self.index >= 7 * self.count // 8 or (self.index - eighth) % 3 == 2

    @property
    def first_eighth(self) -> bool:
        return self.index < self.count // 8

    @property
    def first_sixteenth(self) -> bool:
        return self.index < self.count // 16


Rule = Callable[[Place], str | None]
"""None: the base type."""


def _always(dtype: str) -> Rule:
    return lambda place: dtype


def _if_many_queries(dtype: str, otherwise: str | None = None) -> Rule:
    return lambda p: dtype if p.n_gqa >= 4 else otherwise


def _if_more_bits(dtype: str) -> Rule:
    return lambda p: dtype if p.more_bits else None


_Q4_FIRST: Rule = lambda p: "q4_1" if p.has_imatrix and p.first_eighth else None  # noqa: E731
_Q5_FIRST: Rule = lambda p: "q5_1" if p.has_imatrix and p.first_eighth else None  # noqa: E731
_IQ4_FIRST: Rule = lambda p: "q5_K" if p.first_eighth and not p.has_imatrix else None  # noqa: E731

TABLES: Final[Mapping[str, Mapping[str, Rule]]] = {
    "attn_v": {
        "Q2_K": _if_many_queries("q4_K", "q3_K"),
        "Q2_K_S": _if_many_queries("q4_K"),
        "Q3_K_M": lambda p: "q5_K" if p.index < 2 else "q4_K",
        "Q3_K_L": _always("q5_K"),
        "Q4_K_S": lambda p: "q5_K" if p.index < 4 else None,
        "Q4_K_M": _if_more_bits("q6_K"),
        "Q5_K_M": _if_more_bits("q6_K"),
        "IQ4_NL": _if_many_queries("q5_K"),
        "IQ4_XS": _if_many_queries("q5_K"),
    },
    "ffn_down": {
        "Q4_0": _Q4_FIRST,
        "Q5_0": _Q5_FIRST,
        "Q2_K": _always("q3_K"),
        "Q2_K_S": lambda p: "q4_K" if p.first_eighth else None,
        "Q3_K_M": lambda p: "q5_K" if p.first_sixteenth else "q4_K",
        "Q3_K_L": _always("q5_K"),
        "Q4_K_S": lambda p: "q5_K" if p.first_eighth else None,
        "Q4_K_M": _if_more_bits("q6_K"),
        "Q5_K_M": _if_more_bits("q6_K"),
        "IQ4_NL": _IQ4_FIRST,
        "IQ4_XS": _IQ4_FIRST,
    },
    "attn_output": {
        "Q2_K": _always("q3_K"),
        "Q3_K_M": _always("q4_K"),
        "Q3_K_L": _always("q5_K"),
    },
}
EIGHT_EXPERTS_OUTPUT: Final = ("Q2_K", "Q3_K_S", "Q3_K_M", "Q4_K_S", "Q4_K_M", "IQ4_NL", "IQ4_XS")
"""Presets whose attention output gets q5_K where there are eight experts: it is small beside them."""

# Falcon's feed-forward matrices are less sensitive.
FALCON: Final[Mapping[str, Mapping[str, Rule]]] = {
    "attn_v": TABLES["attn_v"],
    "ffn_down": {
        **TABLES["ffn_down"],
        "Q3_K_M": lambda p: "q5_K" if p.first_sixteenth else "q4_K" if p.more_bits else None,
        "Q3_K_L": _always("q4_K"),
        "Q4_K_S": lambda p: None,
        "Q4_K_M": lambda p: "q6_K" if p.first_sixteenth else "q5_K" if p.more_bits else None,
    },
    "attn_output": {"Q3_K_L": _always("q4_K")},
}


def tensor_kind(name: str) -> str:
    """A tensor's kind in the rules: output, token_embd, attn_v, attn_k, attn_output, ffn_down or other.

    Fused projections that contain the values count as attn_v.
    """
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "token_embd"
    if any(part in name for part in ("attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight")):
        return "attn_v"
    for kind in ("attn_k", "attn_output"):
        if f"{kind}.weight" in name:
            return kind
    return "ffn_down" if "ffn_down" in name else "other"


def wanted_type(preset: Preset, kind: str, place: Place, architecture: str, *, n_matrices: int) -> str:
    """The type of a tensor whose rows fit it. `n_matrices` is the third dimension: more than 1 for experts.

    Not for the output, which `output_type` decides.
    """
    if preset.name == "MXFP4_MOE":
        return "mxfp4" if n_matrices > 1 else "q8_0"
    if kind == "attn_k":
        return "q8_0" if place.n_expert == 8 else preset.base
    falcon = architecture == "falcon"
    if kind == "attn_output" and place.n_expert == 8 and not falcon:
        return "q5_K" if preset.name in EIGHT_EXPERTS_OUTPUT else preset.base
    rule = (FALCON if falcon else TABLES).get(kind, {}).get(preset.name)
    dtype = (rule(place) if rule is not None else None) or preset.base
    if kind == "attn_v":
        if place.is_70b and dtype in ("q3_K", "q4_K"):
            dtype = "q5_K"
        if place.n_expert == 8:
            dtype = "q8_0"
    return dtype


def output_type(preset: Preset, architecture: str, *, whole_blocks: bool) -> str:
    """The type of output.weight, or of token_embd.weight that serves as both.

    `whole_blocks`: its rows divide into blocks of the base type.
    """
    if preset.name == "MXFP4_MOE" or architecture == "falcon" or not whole_blocks:
        return "q8_0"
    return preset.base if preset.base == "q8_0" else "q6_K"
