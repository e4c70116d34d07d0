"""PrefixStore: what it reads ahead of the engine."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from unittest.mock import Mock

import pytest

from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from ollama_engine.runner.prefix_store.block_keys import root_key
from ollama_engine.runner.prefix_store.prefix_store import PrefixReading, PrefixStore, StoreLayout
from ollama_engine.runner.schedule.prefix_blocks import BLOCK
from tests.support.waiting import eventually

ROOT = root_key("model")
SIZE = 1 << 10


@pytest.mark.parametrize(("most", "ahead"), [(1 << 40, 32), (3 * 2 * SIZE * BLOCK + 5000, 3), (0, 1)])
def test_few_bytes_are_read_ahead(most: int, ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a large model take tens of megabytes each, and the engine takes them only between steps."""
    monkeypatch.setattr("ollama_engine.runner.schedule.prefix_blocks.MOST_AHEAD", most)
    folder: Any = BlockFolder(tmp_path, ROOT, 1 << 30)
    folder.has, folder.read = (lambda *_: True), (lambda *_: SimpleRows)
    store = PrefixStore(folder, ROOT, StoreLayout(((SIZE, SIZE),), lambda _: (0,)))
    taken: SimpleQueue[int] = SimpleQueue()
    ended: SimpleQueue[bool] = SimpleQueue()
    reading = PrefixReading([ROOT] * 40, [], 0, None, lambda block, _: taken.put(block), lambda: ended.put(True))
    store.read(reading)
    eventually(lambda: taken.qsize() == ahead)
    assert store._ahead._value == 0  # type: ignore[attr-defined]
    for _ in range(40 - ahead):
        store.took()
    assert ended.get(timeout=30)
    assert [taken.get() for _ in range(40)] == list(range(40))
    store.close(30)


@pytest.mark.skipif(sys.platform != "linux", reason="only there a thread has a priority of its own")
@pytest.mark.parametrize("allowed", [True, False])
def test_writing_gives_way(allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing a block takes a millisecond, in which the engine's thread may need the CPU."""
    if not allowed:
        monkeypatch.setattr(os, "setpriority", Mock(side_effect=PermissionError))
    store = PrefixStore(BlockFolder(tmp_path, ROOT, 1 << 30), ROOT, StoreLayout(((SIZE, SIZE),), lambda _: (0,)))
    found: SimpleQueue[int] = SimpleQueue()
    store.look_for_missing([], [], lambda _: found.put(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert found.get(timeout=30) == (min(19, mine + 10) if allowed else mine)
    store.close(30)


class SimpleRows:
    """Rows of no bytes."""

    rows = ()
