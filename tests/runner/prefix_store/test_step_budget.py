"""How long the store's writer may compute beside a step."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import tests
from ollama_engine.kvcache import SavedRows
from ollama_engine.runner.prefix_store.block_file import block_bytes, read_block, write_block
from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from ollama_engine.runner.prefix_store.block_keys import root_key
from ollama_engine.runner.prefix_store.block_writer import PIECE
from ollama_engine.runner.prefix_store.folder_contents import FILES_AT_ONCE, remove_unused
from ollama_engine.runner.prefix_store.prefix_store import PrefixStore, StoreLayout
from ollama_engine.runner.prefix_store.step_budget import STEP_SECONDS, StepBudget
from tests.support.waiting import eventually, join

ROOT = root_key("model")


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*")]


def rows(nbytes: int, n: int = 4) -> SavedRows:
    return SavedRows(np.arange(n, dtype=np.int32), (np.zeros((n, nbytes // n), np.uint8),))


def test_each_step_is_disturbed_for_a_bounded_time() -> None:
    """The thread waits while a step computes, whose end is looked for now and then."""
    budget, cpu, pieces = StepBudget(), 7.0, list[int]()
    for _ in range(20):
        budget.next_step()
        pieces.append(0)
        while not budget.nothing_left(cpu):
            pieces[-1] += 1
            cpu += STEP_SECONDS / 4
    assert set(pieces) <= {4, 5, 6}
    budget.no_steps()
    for _ in range(100):
        cpu += STEP_SECONDS / 4
        assert not budget.nothing_left(cpu), "no wait where nothing computes"


def test_it_waits_while_the_engine_copies() -> None:
    """Both would want the CPU that is free between two steps."""
    budget = StepBudget()
    budget.next_step()
    assert not budget.nothing_left(0.0)
    budget.hold()
    assert budget.nothing_left(0.0)
    budget.next_step()
    assert not budget.nothing_left(0.0)
    budget.hold()
    budget.no_steps()
    assert not budget.nothing_left(0.0)


def test_a_long_step_does_not_stop_it() -> None:
    budget, began = StepBudget(longest_wait=0.05), time.monotonic()
    budget.next_step()
    budget.hold()
    for _ in range(4):
        budget.pause()
    assert time.monotonic() - began >= 0.2


def test_blocks_share_what_is_left_of_a_step(tmp_path: Path) -> None:
    """Each is written by a thread of its own, whose CPU time begins at 0; a small one never waits itself."""
    budget, n = StepBudget(longest_wait=0.0), 0
    budget.next_step()
    while not budget.nothing_left(0.0):
        write_block(tmp_path / "block", ROOT, 0, rows(PIECE // 2), budget)
        n += 1
        assert n < 100
    budget.next_step()
    assert not budget.nothing_left(0.0)


@pytest.mark.parametrize(
    "saved",
    [rows(10 * PIECE), SavedRows(np.arange(1, dtype=np.int32), rows(100, 1).rows * (PIECE // 10))],
    ids=["a recurrent state", "many layers"],
)
def test_a_block_is_written_in_pieces(saved: SavedRows, tmp_path: Path) -> None:
    """One array of ten pieces, and as many bytes in small ones: beside a step that does not end, one of them."""
    budget = StepBudget(longest_wait=60.0)
    budget.next_step()
    budget.hold()
    writer = Thread(target=write_block, args=(tmp_path / "block", ROOT, 0, saved, budget))
    writer.start()
    eventually(lambda: sizes(tmp_path) and sizes(tmp_path)[0] >= PIECE)
    time.sleep(0.05)
    assert PIECE <= sizes(tmp_path)[0] < PIECE + 200
    budget.no_steps()
    join(writer)
    assert sizes(tmp_path) == [block_bytes(len(saved.positions), [part.shape[1] for part in saved.rows])]
    check = read_block(tmp_path / "block", ROOT, 0, [part.shape[1] for part in saved.rows])
    assert all(np.array_equal(a, b) for a, b in zip(check.rows, saved.rows, strict=True))


def test_the_thread_that_writes_takes_no_python_lock(tmp_path: Path) -> None:
    """It goes on while another thread runs Python: with the lock in its hands, that one waited for its low priority."""
    saved, budget, interval = rows(16 * PIECE), StepBudget(longest_wait=60.0), sys.getswitchinterval()
    budget.next_step()
    budget.hold()
    writer = Thread(target=write_block, args=(tmp_path / "block", ROOT, 0, saved, budget))
    writer.start()
    eventually(lambda: sizes(tmp_path) and sizes(tmp_path)[0] >= PIECE)
    with open(next(tmp_path.iterdir()), "rb") as file:  # under another name soon
        sys.setswitchinterval(60.0)  # seconds until another thread may ask for the lock
        try:
            budget.no_steps()
            end = time.monotonic() + 1
            while time.monotonic() < end:
                pass
            written = os.fstat(file.fileno()).st_size
        finally:
            sys.setswitchinterval(interval)
    join(writer)
    assert [written] == sizes(tmp_path)


ENDS_MEANWHILE = """
import os, sys, threading, time
from pathlib import Path
from tests.runner.prefix_store.test_step_budget import PIECE, ROOT, StepBudget, rows, sizes, write_block
folder, budget = Path(sys.argv[1]), StepBudget(longest_wait={wait})
budget.next_step()
budget.hold()
threading.Thread(target=write_block, args=(folder / "block", ROOT, 0, rows(16 * PIECE), budget), daemon=True).start()
end = time.monotonic() + 30
while not sum(sizes(folder)) and time.monotonic() < end:
    time.sleep(0.001)
if os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 60.0], ids=["while it writes", "while it waits"])
def test_a_process_may_end_or_fork_while_a_block_is_written(wait: float, tmp_path: Path) -> None:
    """Nobody waits for the thread, nothing that it reads goes away, and a child that has no such thread ends, too."""
    root, code = Path(tests.__file__).parents[1], ENDS_MEANWHILE.format(wait=wait)
    command = [sys.executable, "-W", "ignore", "-c", code, tmp_path]  # Python 3.12 warns of forks beside threads
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform != "linux", reason="only there a thread has a priority of its own")
def test_the_thread_that_writes_gives_way(tmp_path: Path) -> None:
    """Not the one that waits for it, which takes Python's lock behind it."""
    budget = StepBudget(longest_wait=60.0)
    budget.next_step()
    budget.hold()
    before = set(os.listdir("/proc/self/task"))
    waits = Thread(target=write_block, args=(tmp_path / "block", ROOT, 0, rows(2 * PIECE), budget))
    waits.start()
    eventually(lambda: sizes(tmp_path) and sizes(tmp_path)[0] >= PIECE)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    new = set(os.listdir("/proc/self/task")) - before - {str(waits.native_id)}
    assert [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in new] == [min(19, mine + 10)]
    assert os.getpriority(os.PRIO_PROCESS, waits.native_id or 0) == mine
    budget.no_steps()
    join(waits)


def test_a_look_at_the_folder_is_made_in_pieces(tmp_path: Path) -> None:
    folder, n = BlockFolder(tmp_path, ROOT, 1 << 30), 3 * FILES_AT_ONCE
    for number in range(n):
        assert folder.write(root_key(str(number)), 0, rows(8))
    pauses = list[int]()
    assert remove_unused(tmp_path, 1, lambda: pauses.append(0)) > 0
    assert len(pauses) == 6, "listed, and removed"


def test_the_stores_writer_keeps_to_its_budget(tmp_path: Path) -> None:
    """Beside a step that does not end, a file does not become whole; once no request runs, it does."""
    folder = BlockFolder(tmp_path, ROOT, 1 << 40)
    store = PrefixStore(folder, ROOT, StoreLayout(((PIECE * 4,),), lambda _: (0,)))
    store.budget = StepBudget(longest_wait=60.0)
    store.budget.next_step()
    store.write(ROOT, 0, rows(64 * 4 * PIECE, 64), lambda done: None)
    eventually(lambda: any(tmp_path.rglob("*.part")))
    time.sleep(0.1)
    assert not folder.has(ROOT, 0)
    store.budget.no_steps()
    eventually(lambda: folder.has(ROOT, 0))
    store.close(30)
