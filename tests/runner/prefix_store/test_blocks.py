"""Blocks: their keys, their files, and the folder that bounds them."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import PIL
import pytest

from ollama_engine.file_lock import held
from ollama_engine.kvcache import SavedRows
from ollama_engine.runner.prefix_store import folder_contents
from ollama_engine.runner.prefix_store.block_file import block_bytes, read_block, write_block
from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from ollama_engine.runner.prefix_store.block_format import BlockFormatError, check_block
from ollama_engine.runner.prefix_store.block_keys import block_keys, root_key
from ollama_engine.runner.prefix_store.folder_contents import (
    ABOUT,
    LOCK,
    files_of,
    remove_model,
    remove_unused,
    stored_models,
)
from ollama_engine.runner.prefix_store.step_budget import StepBudget
from ollama_engine.runner.request.inputs import MediaIdentity
from ollama_engine.runner.schedule.prefix_blocks import BLOCK
from tests.support.emulated import NEEDS_LIMITS

ROOT = root_key("model")
KEY = root_key("some", "block")
SIZES = (6, 4)


def rows(n: int, first: int = 0, fill: int = 7) -> SavedRows:
    parts = tuple(np.full((n, size), fill, np.uint8) for size in SIZES)
    return SavedRows(np.arange(first, first + n, dtype=np.int32), parts)


def tokens(n: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(0, 1000, n).astype(np.int32)


# -- keys --------------------------------------------------------------------------------------------------------------


def test_prompts_that_begin_alike_have_the_same_first_keys() -> None:
    ids = tokens(3 * BLOCK + 5)
    keys = block_keys(ROOT, ids)
    assert len(keys) == len(set(keys)) == 3
    assert block_keys(ROOT, ids[: BLOCK - 1]) == []
    other = ids.copy()
    other[BLOCK] += 1
    assert [a == b for a, b in zip(keys, block_keys(ROOT, other), strict=True)] == [True, False, False]
    assert block_keys(ROOT, ids[:-5]) == keys


def test_what_shapes_keys_and_values_is_in_the_key() -> None:
    ids = tokens(2 * BLOCK)
    image = MediaIdentity(10, BLOCK + 20, 0, 1234)
    different = [
        block_keys(ROOT, ids), block_keys(ROOT, ids, namespace="other"), block_keys(root_key("model", "x"), ids),
        block_keys(ROOT, ids, [image]), block_keys(ROOT, ids, [image._replace(hash=1235)]),
        block_keys(ROOT, ids, [image._replace(begin=11)]), block_keys(ROOT, ids, [image._replace(offset=1)]),
    ]  # fmt: skip
    assert len({key for keys in different for key in keys}) == 2 * len(different)
    later = block_keys(ROOT, ids, [image._replace(begin=BLOCK + 1)])
    with patch.object(PIL, "__version__", "another"):
        assert block_keys(ROOT, ids) == different[0], "texts know nothing of Pillow"
        assert not set(block_keys(ROOT, ids, [image])) & set(different[3])
    assert (later[0] == different[0][0], later[1] == different[0][1]) == (True, False)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_block_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.0"
    n = write_block(path, KEY, 0, rows(5, first=3), StepBudget())
    back = read_block(path, KEY, 0, SIZES)
    assert back.positions.tolist() == [3, 4, 5, 6, 7]
    assert [part[:, 0].tolist() for part in back.rows] == [[7] * 5] * 2
    assert n == path.stat().st_size == block_bytes(5, SIZES)
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["a.0"]


def test_any_flipped_bit_and_any_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.1"
    write_block(path, KEY, 1, rows(2), StepBudget())
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(BlockFormatError):
            read_block(path, KEY, 1, SIZES)
        path.write_bytes(whole[:at])
        with pytest.raises(BlockFormatError):
            read_block(path, KEY, 1, SIZES)
    path.write_bytes(whole)
    for key, kind, sizes in ((ROOT, 1, SIZES), (KEY, 0, SIZES), (KEY, 1, (6, 5))):
        with pytest.raises(BlockFormatError):
            read_block(path, key, kind, sizes)
    read_block(path, KEY, 1, SIZES)


# -- the folder --------------------------------------------------------------------------------------------------------


def test_damaged_blocks_were_never_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = BlockFolder(tmp_path, ROOT, 1 << 20, "x.gguf")
    assert folder.read(KEY, 0, SIZES) is None
    assert folder.write(KEY, 0, rows(4))
    path = folder.path(KEY, 0)
    check_block(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BlockFormatError):
        check_block(path)
    assert folder.read(KEY, 0, SIZES) is None
    assert "does not fit" in caplog.text
    assert not folder.has(KEY, 0)


def test_the_least_recently_used_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = block_bytes(4, SIZES)
    folder = BlockFolder(tmp_path, ROOT, 4 * size, "x.gguf")
    keys = [root_key(str(number)) for number in range(6)]
    for number, key in enumerate(keys[:4]):
        folder.write(key, 0, rows(4))
        os.utime(folder.path(key, 0), (number, number))
    assert folder.read(keys[0], 0, SIZES) is not None  # used just now
    folder.write(keys[4], 0, rows(4))
    assert [folder.has(key, 0) for key in keys[:5]] == [True, False, False, True, True]
    (about,) = stored_models(tmp_path)
    assert (about.model, about.blocks, about.nbytes) == ("x.gguf", 3, 3 * size)
    left = folder.path(keys[5], 0).with_name(".0123.part")
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"x" * size)
    assert remove_unused(tmp_path, 1 << 20) == 0, "it may be in use"
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert remove_unused(tmp_path, 1 << 20) == size


def test_nobody_waits_for_another_process_that_looks(tmp_path: Path) -> None:
    """It pauses beside its steps, so a look at many files takes it seconds."""
    size = block_bytes(4, SIZES)
    folder = BlockFolder(tmp_path, ROOT, size)
    with held(tmp_path / LOCK):
        assert folder.write(KEY, 0, rows(4))
        assert folder.write(KEY, 1, rows(4))
    assert folder.write(KEY, 2, rows(4))
    assert sum(file.nbytes for file in files_of(tmp_path)) <= size, "it looks again"
    assert not (tmp_path / LOCK).exists()


def test_files_of_others_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "ab"
    folder = BlockFolder(tmp_path / "store", ROOT, 1 << 20, "x.gguf")
    folder.write(KEY, 0, rows(4))
    mine = folder.path(KEY, 0)
    named = "1" * 62 + ".0"
    others = [
        tmp_path / "store" / "notes.txt", tmp_path / "store" / "ssl" / "certs" / "ca.crt", mine.parent / "notes.txt",
        tmp_path / "store" / "ssl" / "ab" / named, outside / named, mine.parents[1] / "notes.txt",
    ]  # fmt: skip
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("theirs")
        os.utime(path, (0, 0))
    (tmp_path / "store" / ("2" * 32)).symlink_to(outside.parent)
    (mine.parents[1] / "cd").symlink_to(outside)
    assert [file.path for file in files_of(tmp_path / "store")] == [mine]
    assert remove_unused(tmp_path / "store", 0) == block_bytes(4, SIZES)
    folder.write(KEY, 0, rows(4))
    (model,) = stored_models(tmp_path / "store")
    remove_model(tmp_path / "store", model)
    assert not mine.exists()
    assert all(path.read_text() == "theirs" for path in others)
    assert stored_models(outside) == stored_models(tmp_path / "gone") == stored_models(others[0]) == []


def test_a_model_that_another_process_removes_meanwhile_is_not_listed(tmp_path: Path) -> None:
    folder = BlockFolder(tmp_path, ROOT, 1 << 20, "x.gguf")
    folder.write(KEY, 0, rows(4))
    with patch.object(folder_contents, "_model_files", lambda path: iter(shutil.rmtree(path) or ())):
        assert stored_models(tmp_path) == []


@contextmanager
def files_of_at_most(n: int) -> Iterator[None]:
    """No file of this process grows beyond `n` bytes: a write takes what fits, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_becomes_full_loses_the_block_alone(tmp_path: Path) -> None:
    """It may do so within any write."""
    folder = BlockFolder(tmp_path, ROOT, 1 << 30, "x.gguf")
    assert folder.write(KEY, 0, rows(4))
    before = folder.path(KEY, 0).read_bytes()
    other = root_key("other")
    for n in range(len(before) + 1):
        with files_of_at_most(n):
            done = folder.write(other, 0, rows(3)), folder.write(KEY, 0, rows(4, fill=9))
        names = [path.name for path in tmp_path.rglob("*") if path.is_file() and path.name != LOCK]
        assert sorted(names) == sorted({folder.path(KEY, 0).name, folder.path(other, 0).name, ABOUT} & set(names))
        assert folder.has(other, 0) == (n >= block_bytes(3, SIZES)) == done[0]
        assert done[1] == (n == len(before))
        assert (folder.path(KEY, 0).read_bytes() == before) != done[1]
    for key in (other, KEY):
        check_block(folder.path(key, 0))


def test_a_disk_that_takes_nothing_when_the_file_is_closed(tmp_path: Path) -> None:
    folder, close = BlockFolder(tmp_path, ROOT, 1 << 30), os.close

    def fail(file: int) -> None:
        close(file)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert folder.write(KEY, 1, rows(4))
    with patch.object(os, "close", fail):
        assert not folder.write(KEY, 0, rows(4))
    assert not folder.has(KEY, 0)
    assert not any(tmp_path.rglob("*.part"))


def test_a_disk_that_takes_nothing_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    folder = BlockFolder(place, ROOT, 1 << 20)
    assert not folder.write(KEY, 0, rows(4))
    assert not folder.write(KEY, 1, rows(4))
    assert caplog.text.count("cannot be stored") == 1


NO_THREAD = """
import ctypes, logging, resource, sys
from pathlib import Path
from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from tests.runner.prefix_store.test_blocks import KEY, ROOT, rows
logging.basicConfig(stream=sys.stdout, format="%(message)s")
libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)  # no pthread_attr_t is larger
libc.pthread_attr_init(attributes)
libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(2**23))
assert libc.pthread_setattr_default_np(attributes) == 0  # stacks of 8 MiB, whatever `ulimit -s` says
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**21, used + 2**21))  # a thread's stack does not fit
print(BlockFolder(Path(sys.argv[1]), ROOT, 1 << 30).write(KEY, 0, rows(4)))
"""


@NEEDS_LIMITS
def test_where_no_thread_can_be_started_the_log_does_not_blame_the_disk(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    run = subprocess.run(
        [sys.executable, "-c", NO_THREAD, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert run.stdout == (
        f"prefixes cannot be stored in {tmp_path}: [Errno {errno.EAGAIN}] no thread can be started that writes them "
        f"({os.strerror(errno.EAGAIN)})\nFalse\n"
    ), run
    assert not any(tmp_path.rglob("*.part"))


def test_a_full_disk_gets_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    assert not BlockFolder(tmp_path, ROOT, 1 << 30).write(KEY, 0, rows(4))
    assert not os.listdir(tmp_path)
