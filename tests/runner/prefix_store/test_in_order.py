"""Pieces that several threads read at once, given in order."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from ollama_engine.runner.prefix_store.block_keys import root_key
from ollama_engine.runner.prefix_store.in_order import in_order
from ollama_engine.runner.prefix_store.prefix_store import BLOCKS_AT_ONCE, PrefixReading, PrefixStore, StoreLayout
from tests.support.waiting import eventually

ROOT = root_key("model")


def test_several_are_read_at_once_and_given_in_order() -> None:
    together = threading.Barrier(4)

    def read(number: int) -> int:
        try:
            together.wait(10)
        except threading.BrokenBarrierError:
            return -1
        time.sleep(0.01 * (3 - number % 4))  # the first of each four is the last to be there
        return number

    assert list(in_order(20, 4, lambda: True, read)) == list(range(20))


def test_nothing_is_read_that_is_not_allowed() -> None:
    left, read = iter([True] * 5), list[int]()

    def noted(number: int) -> int:
        read.append(number)
        return number

    given = list(in_order(9, 3, lambda: next(left, False), noted))
    assert given == [0, 1, 2, 3, 4, None, None, None, None]
    assert sorted(read) == [0, 1, 2, 3, 4]


def test_a_system_that_gives_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    left, start = iter([True]), threading.Thread.start

    def few(self: threading.Thread) -> None:
        if not next(left, False):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", few)
    assert list(in_order(9, 4, lambda: True, str)) == list(map(str, range(9)))
    with pytest.raises(RuntimeError):
        in_order(9, 4, lambda: True, str)


@pytest.mark.parametrize("fails", [False, True], ids=["gone", "error"])
def test_a_block_that_is_missing_ends_a_prompt_and_keeps_no_room(fails: bool, tmp_path: Path) -> None:
    """What was read behind it meanwhile is dropped, and as many blocks may be read ahead as before."""
    folder: Any = BlockFolder(tmp_path, ROOT, 1 << 30)
    keys = [root_key(str(number)) for number in range(40)]

    def read(key: bytes, *_: Any) -> Any:
        if key == keys[6]:
            time.sleep(0.05)  # those behind it are there before
            if fails:
                raise MemoryError("none")
            return None
        return NoBytes

    folder.has, folder.read = (lambda *_: True), read
    store = PrefixStore(folder, ROOT, StoreLayout(((8, 8),), lambda _: (0,)))
    ahead = store._ahead._value
    assert ahead > BLOCKS_AT_ONCE
    taken: SimpleQueue[int] = SimpleQueue()
    ended: SimpleQueue[bool] = SimpleQueue()
    store.read(PrefixReading(keys, [], 0, None, lambda block, _: taken.put(block), lambda: ended.put(True)))
    assert ended.get(timeout=30)
    assert [taken.get() for _ in range(taken.qsize())] == list(range(6))
    for _ in range(6):
        store.took()
    eventually(lambda: store._ahead._value == ahead)
    store.close(30)


class NoBytes:
    """Rows of no bytes."""

    rows = ()
