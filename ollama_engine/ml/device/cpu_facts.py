"""Facts that the system tells of the CPU: which one it is, and how large its caches are."""

from __future__ import annotations

import os

__all__ = ["cpu_identity", "last_level_cache"]

_LABELS = {"model name": "", "cpu family": "family ", "model": "model ", "stepping": "stepping "}
"""Lines of /proc/cpuinfo that tell CPUs apart; virtual machines often give the same name to several."""


def cpu_identity(path: str | os.PathLike[str] = "/proc/cpuinfo") -> str:
    """The CPU's name, family, model and stepping: "AMD EPYC, family 26, model 2, stepping 1"."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read().partition("\n\n")[0]
    except OSError:
        text = ""
    lines = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    known = [label + lines[key] for key, label in _LABELS.items() if lines.get(key)]
    return ", ".join(known) or os.uname().machine


def last_level_cache(folder: str | os.PathLike[str] = "/sys/devices/system/cpu/cpu0/cache") -> int:
    """Bytes of the largest cache that CPU 0 reads through; 0 where the system does not say."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    largest = 0
    try:
        for name in os.listdir(folder):
            if name.startswith("index"):
                with open(os.path.join(folder, name, "size"), encoding="ascii") as file:
                    size = file.read().strip()
                if size[-1:] in factors:
                    largest = max(largest, int(size[:-1]) * factors[size[-1]])
    except OSError:
        pass
    return largest
