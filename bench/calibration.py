"""How fast is this machine just now? A fixed mix of work that is none of ours, to which times are put in relation.

Three loops of about half a millisecond each: the interpreter, arithmetic on vectors that lie in the cache, and memory
that does not. Their geometric mean counts, so that neither of them outweighs the others, and the fastest run of each:
what a neighbour adds is taken away as far as there is a quiet moment at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

ROUNDS = 15

_VECTOR = np.linspace(0.1, 1.0, 8192, dtype=np.float32)
_SCRATCH = np.empty_like(_VECTOR)
_LARGE = np.ones(1 << 20, dtype=np.float32)
_COPY = np.zeros_like(_LARGE)


def interpret() -> int:
    """Calls, a dictionary, whole numbers."""
    totals: dict[int, int] = {}
    total = 0
    for i in range(4000):
        totals[i & 63] = total
        total += len(totals) + (i ^ total) % 7
    return total


def compute() -> None:
    """Products, roots and exponentials of 32 KiB."""
    for _ in range(20):
        np.multiply(_VECTOR, _VECTOR, out=_SCRATCH)
        np.sqrt(_SCRATCH, out=_SCRATCH)
        np.exp(_SCRATCH, out=_SCRATCH)


def move() -> None:
    """4 MiB read, 4 MiB written."""
    np.copyto(_COPY, _LARGE)


LOOPS: tuple[Callable[[], object], ...] = (interpret, compute, move)


def calibrate(rounds: int = ROUNDS) -> tuple[float, ...]:
    """Seconds of each loop, the fastest of `rounds`. The loops take turns, so that all see the same neighbours."""
    best = [float("inf")] * len(LOOPS)
    for _ in range(rounds):
        for i, loop in enumerate(LOOPS):
            start = time.perf_counter()
            loop()
            best[i] = min(best[i], time.perf_counter() - start)
    return tuple(best)


def unit(*measured: tuple[float, ...]) -> float:
    """Seconds that stand for 1: the geometric mean of the fastest of each loop."""
    fastest = [min(times) for times in zip(*measured, strict=True)]
    return float(np.exp(np.mean(np.log(fastest))))
