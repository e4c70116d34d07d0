"""How busy the machine is, as the system counts it."""

from __future__ import annotations

import os
from collections.abc import Set

__all__ = ["IdleCpus", "waiting_threads"]


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


class IdleCpus:
    """Counts how many of `cpus` were idle between two calls; on systems without /proc/stat (Linux has it), None.

    The counters have steps of 10 ms. Time that a virtual machine's host took away counts as used.
    """

    def __init__(self, cpus: Set[int], path: str | os.PathLike[str] = "/proc/stat") -> None:
        self._path = path
        self._names = {f"cpu{i}".encode() for i in cpus}
        self._last = self._read()

    def __call__(self) -> float | None:
        """The mean number of idle CPUs since the last call; 0 where no time has passed."""
        now, last = self._read(), self._last
        self._last = now
        if now is None or last is None:
            return None
        idle, total = now[0] - last[0], now[1] - last[1]
        return len(self._names) * idle / total if total > 0 and idle > 0 else 0.0

    def _read(self) -> tuple[int, int] | None:
        """Ticks that the CPUs were idle, and all their ticks."""
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
        return (idle, total) if total else None
