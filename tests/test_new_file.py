"""Files that appear when they are whole, and replace only what they may."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import Mock

import pytest

from ollama_engine.new_file import check_target, write_new_file


def mine(file: BinaryIO) -> None:
    file.write(b"mine")


@pytest.mark.parametrize("links", [True, False])
def test_a_name_that_is_taken_meanwhile(links: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not links:

        def no_links(a: Any, b: Any) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", no_links)
    target = tmp_path / "out"
    with pytest.raises(FileExistsError, match="someone else"):
        write_new_file(target, 10, lambda file: target.write_bytes(b"theirs"))
    assert target.read_bytes() == b"theirs"
    target.unlink()
    write_new_file(target, 10, mine)
    assert target.read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["out"]


def test_what_exists_is_replaced_where_the_caller_says_so(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"theirs")
    with pytest.raises(FileExistsError, match="exists already; remove it first, choose another name, or set overwrite"):
        write_new_file(target, 10, mine)
    assert target.read_bytes() == b"theirs"
    write_new_file(target, 10, mine, overwrite=True)
    assert target.read_bytes() == b"mine"
    write_new_file(tmp_path / "new", 10, mine, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["new", "out"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_folder_is_no_file_to_write(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    for target in (tmp_path, tmp_path / "link"):
        with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
            write_new_file(target, 10, mine, overwrite=overwrite)
    assert os.listdir(tmp_path) == ["link"]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/null")


@pytest.mark.parametrize("make", [fifo, link_to_a_device])
def test_what_is_no_regular_file_is_never_replaced(make: Any, tmp_path: Path) -> None:
    target = tmp_path / "out"
    make(target)
    before = target.stat().st_mode
    with pytest.raises(OSError, match="is no regular file, and is not replaced"):
        write_new_file(target, 10, mine, overwrite=True)
    assert target.stat().st_mode == before
    assert os.listdir(tmp_path) == ["out"]


def test_a_read_only_file_is_never_replaced_by_the_superuser_either(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"theirs")
    target.chmod(0o444)
    with pytest.raises(PermissionError, match="is read-only"):
        write_new_file(target, 10, mine, overwrite=True)
    assert target.read_bytes() == b"theirs"


def test_what_becomes_something_else_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "out"

    def write(file: BinaryIO) -> None:
        os.mkfifo(target)

    with pytest.raises(OSError, match="no regular file"):
        write_new_file(target, 10, write, overwrite=True)
    assert stat.S_ISFIFO(target.stat().st_mode)


def test_the_file_behind_a_link_is_replaced_and_not_the_link(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    write_new_file(tmp_path / "link", 10, mine, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there").read_bytes() == b"mine"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_what_was_there(error: type[BaseException], tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"theirs")

    def fail(file: BinaryIO) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(error):
        write_new_file(target, 10, fail, overwrite=True)
    assert target.read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["out"]


def test_a_full_disk_has_a_name(tmp_path: Path) -> None:
    def fail(file: BinaryIO) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left on device") as caught:
        write_new_file(tmp_path / "out", 10, fail)
    assert caught.value.filename == str(tmp_path / "out")


def test_a_private_file_is_its_owners(tmp_path: Path) -> None:
    write_new_file(tmp_path / "out", 10, mine, private=True)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o600


def test_a_folder_is_none(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_new_file(tmp_path, 10, mine, overwrite=True)


def test_a_folder_that_is_not_there_and_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError):
        check_target(tmp_path / "none" / "out", 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Mock(free=10 << 20))
    with pytest.raises(OSError, match=r"takes 10\.0 MiB, and 10\.0 MiB are free; 1\.0 MiB more must be"):
        check_target(tmp_path / "out", 10 << 20)
