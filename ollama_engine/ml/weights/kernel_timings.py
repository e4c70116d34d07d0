"""From measured times of kernels to a `KernelChoice`. Pure.

A kernel is ours, in one of its variants, or one of ggml's: on the weight as it lies in the file, or on a repacked copy.
Variants of our kernel give the same bits, so each number of rows has the fastest. ggml's kernels give other bits, and
an answer must not depend on how many callers there are: so one of the two, ours or ggml's, serves all numbers of rows
of a type, whatever `parallel` is, and it is the one that is faster on average. Where `base` has our kernel for any
number of rows, so that a prompt has the bits of its tokens one by one, it stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ollama_engine.ml.ops.small_batch import SMALL_BATCH_VARIANTS
from ollama_engine.ml.weights.kernel_choice import KernelChoice
from ollama_engine.ml.weights.kernel_variants import FewRows

__all__ = ["GGML", "REPACKED", "Timings", "decide"]

Timings = Mapping[FewRows, Mapping[str, float]]
"""Seconds per GB of weights, by kernel: a variant of ours, GGML or REPACKED."""

GGML, REPACKED = "ggml", "repacked"
FASTER = 1.15
"""How many times as fast a variant must be to replace the one that `base` has: what memory does by chance is less."""
MUCH_FASTER = 1.1
"""How many times as fast ggml's kernel must be, on average, to replace ours."""


def decide(base: KernelChoice, timings: Timings) -> KernelChoice:
    """The choice for this CPU; `base` decides what was not measured, and what has no kernel of ours."""
    borders, variants = dict(base.borders), dict(base.variants)
    for dtype, experts in _kinds(timings):
        if dtype not in borders:
            continue
        measured = {kind: times for kind, times in timings.items() if (kind.dtype, kind.experts) == (dtype, experts)}
        mine = borders[dtype]
        if not base.has_any_rows(dtype, experts=experts) and _ggml_is_faster(measured.values()) > MUCH_FASTER:
            borders[dtype] = replace(mine, per_expert=0) if experts else replace(mine, last=0, last_long=None)
        else:
            for kind, times in measured.items():
                if best := _best_variant(times, base.variant(dtype, kind.rows, experts=experts)):
                    variants[kind] = best
    made = replace(base, borders=borders, variants=variants)
    return replace(made, measured=tuple(_told(made, timings)))


def _kinds(timings: Timings) -> dict[tuple[str, bool], None]:
    return dict.fromkeys((kind.dtype, kind.experts) for kind in timings)


def _best_variant(times: Mapping[str, float], start: str) -> str | None:
    ours = {name: seconds for name, seconds in times.items() if name in SMALL_BATCH_VARIANTS}
    if not ours:
        return None
    best = min(ours, key=ours.__getitem__)
    return start if ours.get(start, math.inf) <= FASTER * ours[best] else best


def _ggml_is_faster(measured: Iterable[Mapping[str, float]]) -> float:
    """How many times as fast as ours ggml's kernel is, of which the engine prefers the repacked one.

    It is the geometric mean over what has both; 1 for nothing.
    """
    logs = []
    for times in measured:
        ours = [seconds for name, seconds in times.items() if name in SMALL_BATCH_VARIANTS]
        theirs = times.get(REPACKED, times.get(GGML))
        if ours and theirs:
            logs.append(math.log(min(ours) / theirs))
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def _told(choice: KernelChoice, timings: Timings) -> Iterator[str]:
    """A line for each type: "q4_K: spread for 1 rows; l2 for 2, 4 rows", "q6_K experts: ggml"."""
    for dtype, experts in _kinds(timings):
        ours = choice.rows_per_expert(dtype) if experts else choice.rows(dtype, 0)
        rows: dict[str, list[str]] = {}
        faster = _ggml_is_faster(
            times for kind, times in timings.items() if (kind.dtype, kind.experts) == (dtype, experts)
        )
        lost = f" (ggml's kernel is {faster:.1f} times as fast)" if faster > MUCH_FASTER else ""
        for n in sorted(kind.rows for kind in timings if (kind.dtype, kind.experts) == (dtype, experts)):
            rows.setdefault(choice.variant(dtype, n, experts=experts), []).append(str(n))
        variants = "; ".join(f"{variant} for {', '.join(numbers)} rows" for variant, numbers in rows.items())
        yield f"{dtype}{' experts' * experts}: {variants + lost if ours else 'ggml'}"
