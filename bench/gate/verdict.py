"""Whether rows keep their floors: what is measured again, and what counts.

A row is how many times as fast ours is as the fastest other side of the same moment. A row below its floor is measured
again, `ATTEMPTS` times in all. Of each side the fastest of all attempts counts: a neighbour only slows things down, and
no attempt is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.table import duration

ATTEMPTS = 4
"""How often a row below its floor is measured, the first time included."""
OURS = "ours"
READ = "plain read"
"""A side that is shown and no competitor: the same bytes, read and nothing else."""
COPY, COPY_WORTH = "repacked", 0.8
"""A side that takes the memory of the weights a second time, and time to load: it competes with 0.8 of its speed."""

Times = Mapping[str, float]
"""Seconds by side."""


@dataclass(frozen=True)
class Measured:
    """A row's times."""

    times: Times
    nbytes: int = 0
    """How much each side reads from memory in that time; 0 where that is not the question."""

    def joined(self, other: Measured) -> Measured:
        """The fastest of both, by side."""
        return Measured({side: min(seconds, other.times[side]) for side, seconds in self.times.items()}, self.nbytes)

    @property
    def ratio(self) -> float:
        """How many times as fast ours is as the fastest other."""
        others = {side: seconds for side, seconds in self.times.items() if side not in (OURS, READ)}
        return min(s / COPY_WORTH if side == COPY else s for side, s in others.items()) / self.times[OURS]


@dataclass(frozen=True)
class Group:
    """Rows that are measured together."""

    title: str
    floors: Mapping[str, float]
    """By name of a row."""
    measure: Callable[[Collection[str]], Iterator[tuple[str, Measured]]]
    """Measures the named rows."""

    def only(self, words: Sequence[str]) -> Group:
        """The rows whose name, or the group's, has all of these words in it."""
        kept = {name: floor for name, floor in self.floors.items() if all(w in f"{self.title}, {name}" for w in words)}
        return Group(self.title, kept, self.measure)


@dataclass(frozen=True)
class Verdict:
    """A row beside its floor."""

    name: str
    floor: float
    measured: Measured
    attempts: int = 1

    @property
    def ratio(self) -> float:
        return self.measured.ratio

    @property
    def missed(self) -> bool:
        return not self.ratio >= self.floor  # a NaN misses, too


def judge(groups: Sequence[Group], show: Callable[[Verdict], None]) -> list[Verdict]:
    """Measure all rows, then again those that miss their floors; `show` is called with each result.

    Raises ValueError where a row that was asked for is not measured: it may have been renamed.
    """
    verdicts: dict[str, Verdict] = {}
    suspicious = {name for group in groups for name in group.floors}
    for _ in range(ATTEMPTS):
        for group in groups:
            if names := [name for name in group.floors if name in suspicious]:
                _measure(group, names, verdicts, show)
        suspicious = {name for name in suspicious if verdicts[name].missed}
    return list(verdicts.values())


def _measure(group: Group, names: list[str], verdicts: dict[str, Verdict], show: Callable[[Verdict], None]) -> None:
    waited = set(names)
    for name, measured in group.measure(names):
        before = verdicts.get(name)
        joined = measured if before is None else before.measured.joined(measured)
        verdicts[name] = Verdict(name, group.floors[name], joined, 1 if before is None else before.attempts + 1)
        waited.discard(name)
        show(verdicts[name])
    if waited:
        raise ValueError(f"{', '.join(sorted(waited))}: asked for and not measured; has it been renamed?")


# -- words -------------------------------------------------------------------------------------------------------------


def line(verdict: Verdict) -> str:
    """One row for a terminal."""
    mark = "MISSED" if verdict.missed else "ok"
    again = f", {verdict.attempts} attempts" if verdict.attempts > 1 else ""
    sides = ", ".join(f"{side} {_speed(verdict.measured, seconds)}" for side, seconds in verdict.measured.times.items())
    return f"{mark:6} {verdict.ratio:6.2f} >= {verdict.floor:<5g} {verdict.name}: {sides}{again}"


def _speed(measured: Measured, seconds: float) -> str:
    return f"{measured.nbytes / seconds / 1e9:.1f} GB/s" if measured.nbytes else duration(seconds)


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """Targets that are missed, and by how much; the last line sums them up."""
    missed = sorted((verdict for verdict in verdicts if verdict.missed), key=lambda v: v.ratio / v.floor)
    if not missed:
        return [f"{len(verdicts)} rows, no floor missed"]
    return [*map(line, missed), f"{len(missed)} of {len(verdicts)} rows miss their floor"]
