"""How much host memory an allocation may still take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

UNLIMITED = 1 << 62


def available_bytes(
    meminfo: Path = Path("/proc/meminfo"),
    cgroups: Path = Path("/sys/fs/cgroup"),
    membership: Path = Path("/proc/self/cgroup"),
) -> int:
    """Bytes that can be allocated without swapping: the kernel's estimate, bounded by every control group's limit.

    Linux hands out more addresses than it has memory, so an allocation that is far too large would succeed and kill
    the process later; this is asked first.
    """
    rooms = (_room(folder) for folder in _memory_groups(cgroups, membership))
    return min(_system_available(meminfo), *rooms, UNLIMITED)


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
        return UNLIMITED


def _memory_groups(cgroups: Path, membership: Path) -> Iterator[Path]:
    """Folders of the control groups that bound this process's memory: its own and all above it, in both versions.

    A line of /proc/self/cgroup is `number:controllers:path` (cgroups(7)). In a container the path may be the host's,
    of which only the root is mounted; folders that do not exist set no limit.
    """
    try:
        lines = membership.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        lines = ["0::/", "1:memory:/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = PurePosixPath(path.lstrip("/"))
        if not controllers:
            yield from (cgroups / group for group in (own, *own.parents))
        elif "memory" in controllers.split(","):
            yield from (cgroups / "memory" / group for group in (own, *own.parents))


def _room(group: Path) -> int:
    """Room below one group's limit; page cache counts as used there although it is given back, so it is added again.

    Files of version 2 are looked for first, then those of version 1, which writes a huge number for "no limit". Memory
    shared between processes is counted as cache but is not given back.
    """
    for limit_file, used_file, prefix, cache in (
        ("memory.max", "memory.current", "", "file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_", "cache"),
    ):
        try:
            limit = (group / limit_file).read_text(encoding="ascii").strip()
            if limit == "max":
                return UNLIMITED
            used = int((group / used_file).read_text(encoding="ascii"))
            stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
            kept = int(stat.get(f"{prefix}{cache}", 0)) - int(stat.get(f"{prefix}shmem", 0))
            return max(0, int(limit) - used + max(0, kept))
        except (OSError, ValueError):
            continue
    return UNLIMITED
