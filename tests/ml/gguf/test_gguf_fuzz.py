"""Mutation fuzzing of the GGUF reader: every damaged file opens or is refused, and none ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tests
from tests.ml.gguf.gguf_mutants import originals, read_everything
from tests.support.suite import scaled

MUTANTS = scaled(10_000, quick=2_000)
SEED = 20_260_101


def test_the_originals_are_sound(tmp_path: Path) -> None:
    for data in originals():
        path = tmp_path / "sound.gguf"
        path.write_bytes(data)
        read_everything(path, len(data))


def test_mutants_open_or_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.ml.gguf.gguf_mutants", str(tmp_path), str(SEED), str(MUTANTS)]
    root = Path(tests.__file__).parents[1]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert child.returncode == 0, (
        f"mutant {(tmp_path / 'progress').read_text()} of seed {SEED} ended the process with {child.returncode}; "
        f"it lies at {tmp_path / 'mutant.gguf'}\n{child.stderr[-2000:]}"
    )
    summary = json.loads(child.stdout)
    assert summary["failures"] == []
    assert summary["opened"] + summary["refused"] == MUTANTS
    # Mutations that all miss, or all hit the same check, would prove little.
    assert summary["opened"] >= MUTANTS // 20
    assert summary["refused"] >= MUTANTS // 2
    assert len(summary["kinds"]) >= 25
    # Our checks are at least as strict as ggml's: nothing gets through to be refused there.
    assert not [kind for kind in summary["kinds"] if "ggml refused" in kind]
    assert child.stderr == ""
