"""Attention: the engine's way beside ggml's flash attention with a mask, of rows that decode and of a prompt's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import Any

from bench import attention_ways
from bench.gate.verdict import OURS, Group, Measured
from bench.products import by_turns
from bench.reported import shortest
from bench.targets import floor
from ollama_engine.ml.ops.paged import paged_attention_chosen

Rows = list[tuple[int, int]]
CASES: dict[str, tuple[str, Rows, dict[str, Any]]] = {
    "1 row behind 4096 tokens": ("few rows", [(0, 4096)], {"n_sequences": 1, "n_tokens": 4096, "by_turns": False}),
    "8 streams, each behind 512 tokens": (
        "few rows", [(s, 512) for s in range(8)], {"n_sequences": 8, "n_tokens": 512, "by_turns": True},
    ),
    "256 rows of a prompt behind 1024 tokens": (
        "many rows", [(0, 1024 + i) for i in range(256)], {"n_sequences": 1, "n_tokens": 1024, "by_turns": False},
    ),
}  # fmt: skip
"""(floor, rows of (sequence, position), what is cached)"""
REPEATED = 2


def group() -> Group:
    names = {f"attention of {name}": name for name in CASES}
    ours = paged_attention_chosen("f16")
    floors = {name: floor(f"attention of {CASES[case][0]}", ours=ours) for name, case in names.items()}

    def measure(chosen: Collection[str]) -> Iterator[tuple[str, Measured]]:
        for name in chosen:
            _, rows, how = CASES[names[name]]
            with ExitStack() as opened:
                steps = {
                    side: opened.enter_context(attention_ways.step("f16", way, rows, **how))
                    for side, way in ((OURS, "indices"), ("ggml", "masked"))
                }
                sides = {side: lambda step=step: seconds(step) for side, step in steps.items()}
                yield name, Measured(by_turns(sides))

    return Group("attention", floors, measure)


def seconds(step: Callable[[], None]) -> float:
    """The shortest of a few."""
    return shortest(step, REPEATED)
