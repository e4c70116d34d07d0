"""Which variant of our kernels few rows of activations begin with, before anything is measured on a CPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED

__all__ = ["DEFAULT_VARIANT", "FEW_ROWS", "FewRows", "start_variants"]


class FewRows(NamedTuple):
    """Products of one kind, for which the fastest variant is chosen."""

    dtype: str
    rows: int
    """Of activations; where there are experts, of each."""
    experts: bool


FEW_ROWS = (1, 2, 4, 8)
"""Numbers of rows that a variant is chosen for. One between two has the variant of the smaller."""
DEFAULT_VARIANT = "spread"
FLOATS = ("f16", "bf16")
ZEN_5 = {1: "deep", 2: DEFAULT_VARIANT}
"""What so many rows of a quantized type begin with there: models of six types decode 1.06 to 1.39 times as fast."""
ZEN_4 = {1: "l2", 2: "l2", 4: "l2", 8: DEFAULT_VARIANT}
"""As ZEN_5, of floats, too: fewer lines can be on their way into L1 than the default asks for. As fast with one row
where memory is quick (0.92 to 1.11 of the default), and 1.8 times as fast where it is slow; two rows 0.97 to 2.3."""
ZEN_4_IN_LANES = ZEN_4 | {4: "l2-rows", 8: "spread-rows"}
"""Blocks of 32 there, whose kernels have fours of blocks otherwise: 0.96 to 1.2 times as fast with 4 rows, 1.1 to 1.25
with 6 to 8."""


TWO_IN_LANES = {2: "spread-rows"}
"""Blocks of 256 on other CPUs than Zen 4: two rows in fours of such blocks were never measured there."""


def start_variants(traits: Collection[str]) -> Mapping[FewRows, str]:
    """Variants before anything is measured on this CPU, where they are not the default."""
    starts: dict[FewRows, str] = {}
    for dtype in (*SMALL_BATCH_QUANTIZED, *FLOATS):
        by_rows = _starts_of(block_of(dtype)[0], traits)
        for experts in (False, True) if dtype in SMALL_BATCH_QUANTIZED else (False,):
            starts |= {FewRows(dtype, rows, experts): variant for rows, variant in by_rows.items()}
    return MappingProxyType(starts)


def _starts_of(block: int, traits: Collection[str]) -> Mapping[int, str]:
    """Of types with so many weights in a block, by the number of rows.

    Zen 5 is AMD's first CPU with AVX-VNNI beside AVX-512, Zen 4 the only one with AVX-512 VNNI alone. A CPU that is
    neither these nor Intel's begins as Zen 4 does. That is a guess: none was measured, and on Zen 4 `l2` loses 8 % at
    most.
    """
    vnni, zen_5 = "avx512vnni" in traits, {"avx512vnni", "avxvnni"} <= set(traits)
    elsewhere = TWO_IN_LANES if vnni and block == 256 else {}
    if "intel" in traits:
        return elsewhere
    if zen_5:
        return ZEN_5 | elsewhere if block > 1 else {}
    return ZEN_4_IN_LANES if vnni and block == 32 else ZEN_4
