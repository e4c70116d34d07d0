"""How much host memory an allocation may still take."""

from __future__ import annotations

import os
from pathlib import Path


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be allocated without swapping: the kernel's estimate, bounded by the control group's limit.

    Linux hands out more addresses than it has memory, so an allocation that is far too large would succeed and kill
    the process later; this is asked first.
    """
    return min(_system_available(meminfo), _cgroup_available(cgroup))


def _system_available(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 1 << 62


def _cgroup_available(cgroup: Path) -> int:
    """Room below memory.max; page cache counts as used there although it is given back, so it is added again."""
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return 1 << 62
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(0, int(limit) - used + int(stat.get("file", 0)))
    except (OSError, ValueError):
        return 1 << 62
