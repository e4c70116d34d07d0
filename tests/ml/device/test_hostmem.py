"""Room for an allocation, in control groups of both versions that the tests make up."""

from __future__ import annotations

from pathlib import Path

import pytest

from ollama_engine.ml.device.hostmem import available_bytes

SYSTEM = 1000 << 10


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 5000 kB\nMemAvailable:    1000 kB\n", encoding="ascii")
    return path


def group(folder: Path, limit: object, used: int, cache: int = 0, shared: int = 0) -> None:
    """A group of version 2."""
    _write(folder, {"memory.max": limit, "memory.current": used,
                    "memory.stat": f"anon 1\nfile {cache}\nshmem {shared}"})  # fmt: skip


def old_group(folder: Path, limit: object, used: int, cache: int = 0, shared: int = 0) -> None:
    """A group of version 1; its own counts leave out the groups below, the totals do not."""
    _write(folder, {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used,
                    "memory.stat": f"cache 7\nshmem 7\ntotal_cache {cache}\ntotal_shmem {shared}"})  # fmt: skip


def _write(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n", encoding="ascii")


def room(meminfo: Path, membership: str) -> int:
    """What is available to a process whose groups lie in the folder `groups` beside `meminfo`."""
    path = meminfo.with_name("membership")
    path.write_text(membership, encoding="utf-8")
    return available_bytes(meminfo, meminfo.with_name("groups"), path)


@pytest.mark.parametrize(
    ("limit", "used", "cache", "shared", "expected"),
    [
        ("max", 0, 0, 0, SYSTEM),
        (600000, 100000, 0, 0, 500000),
        (600000, 500000, 300000, 0, 400000),
        (600000, 500000, 300000, 100000, 300000),
        (1, 9, 0, 0, 0),
        ("?", 9, 0, 0, SYSTEM),
    ],
)
def test_one_group(meminfo: Path, limit: object, used: int, cache: int, shared: int, expected: int) -> None:
    group(meminfo.with_name("groups"), limit, used, cache, shared)
    assert room(meminfo, "0::/\n") == expected


def test_every_group_above_bounds_too(meminfo: Path) -> None:
    groups = meminfo.with_name("groups")
    group(groups / "a/b", "max", 10)
    group(groups / "a", 500000, 100000)
    group(groups / "a/b/c", 700000, 100000)
    assert room(meminfo, "0::/a/b/c\n") == 400000
    assert room(meminfo, "0::/a/b\n") == 400000
    group(groups / "a/b/c", 300000, 100000)
    assert room(meminfo, "0::/a/b/c\n") == 200000
    assert room(meminfo, "0::/elsewhere\n") == SYSTEM


def test_version_1(meminfo: Path) -> None:
    groups = meminfo.with_name("groups") / "memory"
    old_group(groups, 0x7FFFFFFFFFFFF000, 900000)
    assert room(meminfo, "4:memory:/a\n0::/\n") == SYSTEM
    old_group(groups / "a", 600000, 500000, 300000, 100000)
    assert room(meminfo, "4:memory:/a\n0::/\n") == 300000
    assert room(meminfo, "4:cpu,memory:/a/b\n") == 300000
    assert room(meminfo, "4:cpu:/a\n5:name=systemd:/a\n0::/\n") == SYSTEM


def test_a_container_that_is_told_the_hosts_path_but_sees_its_own_group_as_root(meminfo: Path) -> None:
    old_group(meminfo.with_name("groups") / "memory", 600000, 100000)
    assert room(meminfo, "4:memory:/docker/0123\n") == 500000


def test_what_cannot_be_read_sets_no_bound(meminfo: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert available_bytes(meminfo, none, none) == SYSTEM
    assert available_bytes(none, none, none) > 0
    group(tmp_path / "groups", 600000, 100000)
    assert available_bytes(meminfo, tmp_path / "groups", none) == 500000
