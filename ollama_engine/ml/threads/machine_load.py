"""How busy the machine is, as the system counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Set
from typing import NamedTuple

__all__ = ["CpuUse", "CpuUseMeter", "waiting_threads"]


def waiting_threads(path: str | os.PathLike[str] = "/proc/loadavg") -> int | None:
    """How many threads of the machine want a CPU just now beyond those that have one, the caller counted.

    Below 0 where CPUs are idle; None on systems without that file (Linux has it).
    """
    try:
        with open(path, "rb", buffering=0) as file:
            running = file.read(256).split()[3].split(b"/")[0]
        return int(running) - (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):
        return None


class CpuUse(NamedTuple):
    """How a number of CPUs was used, on average."""

    idle: float
    """CPUs that were idle."""
    others: float
    """CPUs that other programs used, and the host of a virtual machine."""


class CpuUseMeter:
    """Tells who used `cpus` between two calls; None on systems without /proc/stat (Linux has it).

    The system counts in steps of 10 ms, so 50 ms between calls are the least that say something.
    """

    def __init__(self, cpus: Set[int], path: str | os.PathLike[str] = "/proc/stat") -> None:
        self._path = path
        self._names = {f"cpu{i}".encode() for i in cpus}
        self._last = self._read()

    def __call__(self) -> CpuUse | None:
        """The mean use since the last call."""
        now, last = self._read(), self._last
        self._last = now
        if now is None or last is None:
            return None
        idle, total, own = (max(0.0, b - a) for a, b in zip(last, now, strict=True))
        if total == 0:
            return None
        n = len(self._names)
        seconds = total / n
        return CpuUse(min(n, idle / seconds), max(0.0, (total - idle - own) / seconds))

    def _read(self) -> tuple[float, float, float] | None:
        """Seconds that the CPUs were idle, all their seconds, and those that this process used."""
        idle = total = 0
        try:
            with open(self._path, "rb", buffering=0) as file:
                lines = file.read(1 << 20).splitlines()
            for line in lines:
                name, *ticks = line.split()
                if name in self._names:
                    # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user and nice.
                    values = [int(tick) for tick in ticks[:8]]
                    idle += values[3] + values[4]
                    total += sum(values)
        except (OSError, ValueError, IndexError):
            return None
        tick = 1 / os.sysconf("SC_CLK_TCK")
        return (idle * tick, total * tick, time.process_time()) if total else None
