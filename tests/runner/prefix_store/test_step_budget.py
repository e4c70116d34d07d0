"""How long the store's writer may compute beside a step."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from ollama_engine.kvcache import SavedRows
from ollama_engine.runner.prefix_store import step_budget
from ollama_engine.runner.prefix_store.block_file import PIECE, write_block
from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from ollama_engine.runner.prefix_store.block_keys import root_key
from ollama_engine.runner.prefix_store.folder_contents import FILES_AT_ONCE, remove_unused
from ollama_engine.runner.prefix_store.prefix_store import PrefixStore, StoreLayout
from ollama_engine.runner.prefix_store.step_budget import STEP_SECONDS, StepBudget
from tests.support.waiting import eventually

ROOT = root_key("model")


def rows(nbytes: int, n: int = 4) -> SavedRows:
    return SavedRows(np.arange(n, dtype=np.int32), (np.zeros((n, nbytes // n), np.uint8),))


def test_each_step_is_disturbed_for_a_bounded_time() -> None:
    """The thread waits while a step computes, whose end is looked for now and then."""
    budget, cpu, pieces = StepBudget(lambda: cpu[0], lambda _: begin_step()), [7.0], list[int]()

    def begin_step() -> None:
        pieces.append(0)
        budget.next_step()

    begin_step()
    for _ in range(100):
        pieces[-1] += 1
        cpu[0] += STEP_SECONDS / 4
        budget.pause()
    assert max(pieces) <= 6
    assert len(pieces) >= 20, "and goes on with each step"
    budget.no_steps()
    for _ in range(100):
        cpu[0] += STEP_SECONDS / 4
        budget.pause()
    assert sum(pieces) == 100, "no sleep where nothing computes"


def test_it_waits_while_the_engine_copies() -> None:
    """Both would want the CPU that is free between two steps."""
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        budget.next_step()

    budget = StepBudget(lambda: 0.0, sleep)
    budget.next_step()
    budget.pause()
    assert not slept
    budget.hold()
    budget.pause()
    assert len(slept) == 1


def test_a_long_step_does_not_stop_it() -> None:
    slept, cpu = list[float](), [0.0]
    budget = StepBudget(lambda: cpu[0], slept.append)
    budget.next_step()
    for _ in range(100):
        cpu[0] += STEP_SECONDS
        budget.pause()
    assert 40 < sum(slept) < 101


@pytest.mark.parametrize(
    "saved",
    [rows(10 * PIECE), SavedRows(np.arange(1, dtype=np.int32), rows(100, 1).rows * (PIECE // 10))],
    ids=["a recurrent state", "many layers"],
)
def test_a_block_is_written_in_pieces(saved: SavedRows, tmp_path: Path) -> None:
    """One array of ten pieces, and as many bytes in small ones."""
    pauses = list[int]()
    write_block(tmp_path / "block", ROOT, 0, saved, lambda: pauses.append(0))
    assert 9 <= len(pauses) <= 10


def test_a_look_at_the_folder_is_made_in_pieces(tmp_path: Path) -> None:
    folder, n = BlockFolder(tmp_path, ROOT, 1 << 30), 3 * FILES_AT_ONCE
    for number in range(n):
        assert folder.write(root_key(str(number)), 0, rows(8))
    pauses = list[int]()
    assert remove_unused(tmp_path, 1, lambda: pauses.append(0)) > 0
    assert len(pauses) == 6, "listed, and removed"


def test_the_stores_writer_keeps_to_its_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a step that does not end, a file does not become whole; once no request runs, it does."""
    monkeypatch.setattr(step_budget, "LONGEST_WAIT", 60.0)
    folder, waits = BlockFolder(tmp_path, ROOT, 1 << 40), list[float]()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        time.sleep(seconds)

    store = PrefixStore(folder, ROOT, StoreLayout(((PIECE * 4,),), lambda _: (0,)))
    store.budget = StepBudget(sleep=sleep)
    store.budget.next_step()
    store.write(ROOT, 0, rows(64 * 4 * PIECE, 64), lambda done: None)
    eventually(lambda: len(waits) >= 3)
    assert any(tmp_path.rglob("*.part"))
    assert not folder.has(ROOT, 0)
    store.budget.no_steps()
    eventually(lambda: folder.has(ROOT, 0))
    store.close(30)
