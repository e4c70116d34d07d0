"""Measures kernels of few rows on weights that are read from memory, as a model reads them while it decodes.

All kernels and numbers of rows of a kind of weights take turns. Memory is quicker in one moment than in the next. So a
kernel is compared, in each turn, with the one that the engine begins with, and the median of that counts. A kernel that
is far behind takes no further turns. What is read first pays for pages and for threads that sleep; it is not timed.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.ops.small_batch import small_batch_variants
from ollama_engine.ml.weights.kernel_choice import BY_TABLE, KernelChoice
from ollama_engine.ml.weights.kernel_samples import PLAIN_READ, Samples, Weighed
from ollama_engine.ml.weights.kernel_variants import FEW_ROWS, FewRows

__all__ = ["measure"]

BEHIND = (2.0, 1.3, 1.1)
"""After each turn, kernels so many times as slow as the fastest drop out."""
BEHIND_WITH_FIRST_ROWS = 1.5
"""How many times as slow as the fastest a kernel is, with the first number of rows, that the others leave out."""
UNDISTURBED = 3
"""Turns of which one met no other program, as far as that matters: fewer decide nothing."""
TURNS = 12


def measure(
    backend: Backend, files: Sequence[mmap.mmap], weighed: Weighed, seconds: float, rows: Sequence[int] = FEW_ROWS, *,
    base: KernelChoice = BY_TABLE, everything: bool = False,
) -> dict[FewRows, dict[str, float]]:  # fmt: skip
    """Seconds per GB of weights by kernel, for each kind and `rows`; without kinds for which the time is too short.

    A choice by some of the row counts would hold for all of them, and one turn may be another program's.
    Where weights have to be read from a disk first, as loading the model has to, it takes that much longer.
    `base`: where it has our kernels for any number of rows, ggml's cannot be chosen, and take no part.
    `everything`: measure plain reads, too, and all of ggml's kernels; then the fastest turn of each counts.
    """
    end = time.perf_counter() + seconds
    measured: dict[FewRows, dict[str, float]] = {}
    for done, (kind, infos) in enumerate(weighed.items()):
        with ExitStack() as undo:
            began = time.perf_counter()
            samples = Samples(backend, files, kind, infos, undo)
            end += time.perf_counter() - began
            if everything or not base.has_any_rows(kind.dtype, experts=kind.experts):
                samples.add_ggml(undo, everything=everything)
            left = end - time.perf_counter()
            if samples.tensors and left > 0:
                contests = [_Contest(samples, n, base, everything) for n in rows]
                share = end - left * (1 - 1 / (len(weighed) - done))
                if _take_turns(contests, share, end):
                    measured |= {contest.question: contest.seconds() for contest in contests}
    return measured


def _take_turns(contests: Sequence[_Contest], share: float, end: float) -> bool:
    """Have them take turns until `share`; those that they need at least, until `end`. False if that is too early."""
    contests[0].warm_up(end)
    for turn in range(TURNS):
        for contest in contests:
            if not contest.take_turn(end if turn < UNDISTURBED else share):
                return turn >= UNDISTURBED
            if turn == 0 and contest is contests[0]:
                for other in contests[1:]:
                    other.leave_out(contest.far_behind())
    return True


@dataclass
class _Contest:
    """The kernels of a kind for one number of rows."""

    samples: Samples
    rows: int
    base: KernelChoice
    everything: bool
    turns: list[dict[str, float]] = field(default_factory=list)
    """Seconds per GB of those that took part in each turn."""

    def __post_init__(self) -> None:
        kind = self.samples.kind
        self.start = self.base.variant(kind.dtype, self.rows, experts=kind.experts)
        self.sides = [*small_batch_variants(kind.dtype, self.rows), *self.samples.ggml]
        self.sides += [PLAIN_READ] * self.everything

    @property
    def question(self) -> FewRows:
        return FewRows(self.samples.kind.dtype, self.rows, self.samples.kind.experts)

    def warm_up(self, end: float) -> None:
        """Read all weights once, as far as there is time."""
        for _ in range(self.samples.circle):
            if time.perf_counter() > end:
                return
            self._sample(self.start)

    def far_behind(self) -> list[str]:
        """Kernels that other numbers of rows leave out, after the first turn; none where everything is measured."""
        turn = self.turns[0]
        limit = BEHIND_WITH_FIRST_ROWS * min(turn.values())
        return [] if self.everything else [name for name, seconds in turn.items() if seconds > limit]

    def leave_out(self, names: Iterable[str]) -> None:
        self.sides = [name for name in self.sides if name == self.start or name not in names]

    def take_turn(self, end: float) -> bool:
        """Measure each kernel once more; False where the time is over before."""
        seconds: dict[str, float] = {}
        for name in self.sides:
            if time.perf_counter() > end:
                return False
            seconds[name] = self._sample(name)
        late = len(self.turns) - UNDISTURBED * self.everything
        self.turns.append(seconds)
        if late >= 0:
            so_far = self.seconds()
            limit = BEHIND[min(late, len(BEHIND) - 1)] * min(so_far[name] for name in so_far if name != PLAIN_READ)
            self.sides = [name for name in self.sides if name in (PLAIN_READ, self.start) or so_far[name] <= limit]
        return True

    def seconds(self) -> dict[str, float]:
        """Seconds per GB, by kernel: the start's median, times the median of how many times as long another took.

        Of those that dropped out nothing is told, unless everything is measured: in the only turn that they took part
        in, another program may have slowed the start.
        """
        if self.everything:
            return {name: min(turn[name] for turn in self.turns if name in turn) for name in self.turns[0]}
        start = _median([turn[self.start] for turn in self.turns])
        return {name: start * _median([turn[name] / turn[self.start] for turn in self.turns]) for name in self.sides}

    def _sample(self, name: str) -> float:
        return self.samples.seconds(name, self.rows)


def _median(values: Sequence[float]) -> float:
    """As NumPy's, whose first call takes 40 ms."""
    ordered, half = sorted(values), len(values) // 2
    return (ordered[half] + ordered[~half]) / 2
