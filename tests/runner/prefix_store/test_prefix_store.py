"""PrefixStore: what it reads ahead of the engine."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from ollama_engine.kvcache import SavedRows
from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from ollama_engine.runner.prefix_store.block_keys import root_key
from ollama_engine.runner.prefix_store.prefix_store import PrefixReading, PrefixStore, StoreLayout
from ollama_engine.runner.prefix_store.speeds import SharedSpeed
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


def test_blocks_that_are_read_side_by_side_share_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of a block a second: eight blocks take eight seconds, also where two reads wait for it at a time."""
    nbytes, n, both = 2 * SIZE * BLOCK, 8, threading.Barrier(2)
    now = [0.0]
    monkeypatch.setattr("ollama_engine.runner.prefix_store.prefix_store.usable_cpus", lambda: 2)
    monkeypatch.setattr(
        "ollama_engine.runner.prefix_store.prefix_store.SharedSpeed", lambda: SharedSpeed(lambda: now[0])
    )
    row = np.zeros((BLOCK, SIZE), np.uint8)

    def read(*_: object) -> SavedRows:
        if both.wait(30) == 0:
            now[0] += 2.0  # what two blocks take
        both.wait(30)
        return SavedRows(np.arange(BLOCK, dtype=np.int32), (row, row))

    folder: Any = BlockFolder(tmp_path, ROOT, 1 << 30)
    folder.has, folder.read, folder.count_hit = (lambda *_: True), read, lambda: None
    store = PrefixStore(folder, ROOT, StoreLayout(((SIZE, SIZE),), lambda _: (0,)))
    ended: SimpleQueue[bool] = SimpleQueue()
    store.read(PrefixReading([ROOT] * n, [], 0, None, lambda *_: store.took(), lambda: ended.put(True)))
    assert ended.get(timeout=30)
    assert store._read_speed.seconds(n * nbytes) == pytest.approx(n)
    store.close(30)


class SimpleRows:
    """Rows of no bytes."""

    rows = ()
