"""Memory, descriptors and threads of this process over time, and whether they stayed flat."""

from __future__ import annotations

import os
import resource
import threading
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

PAGE = resource.getpagesize()
QUARTER = 4
GROWTH_MIB = 24.0
"""Memory that may be added between the second and the last quarter: heaps that settle."""


class Sample(NamedTuple):
    seconds: float
    rss_mib: float
    descriptors: int
    threads: int
    answers: int


def sample(start: float, answers: int) -> Sample:
    """Now. Linux only: it reads /proc."""
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE
    descriptors, threads = len(os.listdir("/proc/self/fd")) - 1, len(os.listdir("/proc/self/task"))
    return Sample(time.monotonic() - start, resident / 2**20, descriptors, threads, answers)


class Watch(threading.Thread):
    """Takes a sample each `interval` seconds until `stop`."""

    def __init__(self, answers: object, interval: float, report: object) -> None:
        super().__init__(daemon=True)
        self._answers, self._interval, self._report = answers, interval, report
        self._over = threading.Event()
        self.start_time = time.monotonic()
        self.samples: list[Sample] = []

    def run(self) -> None:
        while not self._over.wait(self._interval):
            self.samples.append(sample(self.start_time, self._answers()))  # type: ignore[operator]
            self._report(self.samples[-1])  # type: ignore[operator]

    def stop(self) -> None:
        self._over.set()
        self.join()


def faults_of(samples: list[Sample], before: Sample, after: Sample) -> list[str]:
    """Resources that grew. `before` and `after` the clients: engines loaded, nobody asking."""
    faults = []
    if after.descriptors > before.descriptors:
        faults.append(f"descriptors: {before.descriptors} before, {after.descriptors} after")
    if after.threads > before.threads:
        faults.append(f"threads: {before.threads} before, {after.threads} after")
    size = len(samples) // QUARTER
    if size:
        early, late = (median(s.rss_mib for s in part) for part in (samples[size : 2 * size], samples[-size:]))
        if late - early > GROWTH_MIB:
            faults.append(f"memory: {early:.1f} MiB in the second quarter, {late:.1f} in the last")
    return faults


def draw(samples: list[Sample], path: Path) -> None:
    """A picture of all samples. Needs matplotlib (the extra `plot`)."""
    from matplotlib.figure import Figure  # noqa: PLC0415 (optional)

    figure = Figure(figsize=(9, 6), layout="constrained")
    rows = figure.subplots(4, 1, sharex=True)
    minutes = [s.seconds / 60 for s in samples]
    for axes, name, values in zip(
        rows,
        ("memory, MiB", "descriptors", "threads", "calls"),
        ([s.rss_mib for s in samples], [s.descriptors for s in samples], [s.threads for s in samples],
         [s.answers for s in samples]),
        strict=True,
    ):  # fmt: skip
        axes.plot(minutes, values, linewidth=1)
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    rows[-1].set_xlabel("minutes")
    figure.savefig(path, dpi=110)
