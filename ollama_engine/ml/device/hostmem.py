"""How much host memory an allocation may still take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

AnyPath = str | os.PathLike[str]

UNLIMITED = 1 << 62
"""Version 1 control groups write "no limit" as a number of this size; version 2 writes "max"."""


class _Names(NamedTuple):
    """Names of a control group's files, and of the lines of its memory.stat."""

    limit: str
    used: str
    cache: str
    shared: str


_VERSION_1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem")
_VERSION_2 = _Names("memory.max", "memory.current", "file", "shmem")


def available_bytes(
    meminfo: AnyPath = "/proc/meminfo",
    cgroups: AnyPath = "/sys/fs/cgroup",
    membership: AnyPath = "/proc/self/cgroup",
) -> int:
    """Bytes that can be allocated without swapping: the kernel's estimate, bounded by every control group's limit.

    Ask this before a large allocation. Linux overcommits: an allocation that is far too large succeeds, and the kernel
    kills the process later.
    """
    rooms = (_room(group, names) for group, names in _memory_groups(cgroups, membership))
    return min(_system_available(meminfo), *rooms, UNLIMITED)


def _system_available(meminfo: AnyPath) -> int:
    try:
        for line in _read(meminfo).splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return UNLIMITED


def _memory_groups(cgroups: AnyPath, membership: AnyPath) -> Iterator[tuple[str, _Names]]:
    """The control groups that bound this process's memory: its own and all above it, in both versions.

    A line of /proc/self/cgroup is `number:controllers:path` (cgroups(7)). In a container the path may be the host's,
    of which only the root is mounted; folders that do not exist set no limit.
    """
    try:
        lines = _read(membership).splitlines()
    except OSError:
        lines = ["0::/", "1:memory:/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        steps = [step for step in path.split("/") if step]
        own_and_above = ["/".join(steps[:depth]) for depth in range(len(steps), -1, -1)]
        if not controllers:
            yield from ((os.path.join(cgroups, group), _VERSION_2) for group in own_and_above)
        elif "memory" in controllers.split(","):
            yield from ((os.path.join(cgroups, "memory", group), _VERSION_1) for group in own_and_above)


def _room(group: str, names: _Names) -> int:
    """Bytes below one group's limit. Page cache counts as used although the kernel reclaims it, so it is added back.

    Shared memory counts as page cache too, but cannot be reclaimed: it is not added.
    """
    try:
        limit = _read(os.path.join(group, names.limit)).strip()
        if limit == "max" or int(limit) >= UNLIMITED:
            return UNLIMITED
        used = int(_read(os.path.join(group, names.used)))
        stat = dict(line.split() for line in _read(os.path.join(group, "memory.stat")).splitlines())
        cache = int(stat.get(names.cache, 0)) - int(stat.get(names.shared, 0))
        return max(0, int(limit) - used + max(0, cache))
    except (OSError, ValueError):
        return UNLIMITED


def _read(path: AnyPath) -> str:
    # os.path, not pathlib: importing pathlib takes longer than reading all of these files.
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
