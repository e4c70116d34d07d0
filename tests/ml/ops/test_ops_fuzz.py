"""Fuzzing of the operations: each call is right by numpy or raises cleanly, and none ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tests
from ollama_engine.ml import ops
from tests.support.suite import scaled

SEED = 20_260_101
CALLS = scaled(20_000, quick=3_500)
OPERATORS = {"+", "-", "*", "/"}
OF_FILES = {"await_experts", "guess_experts"}
"""Take weights of an `ExpertCache` alone: tests/ml/threads/test_expert_cache.py."""


def run_child(path: Path, seed: int, calls: int) -> tuple[subprocess.CompletedProcess[str], str]:
    log = path / "cases.log"
    command = [sys.executable, "-m", "tests.ml.ops.ops_fuzz_child", str(seed), str(calls), str(log)]
    root = Path(tests.__file__).parents[1]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return child, log.read_text(encoding="utf-8") if log.exists() else ""


def test_every_call_is_right_or_refused(tmp_path: Path) -> None:
    child, log = run_child(tmp_path, SEED, CALLS)
    assert child.returncode == 0, (
        f"seed {SEED} ended with {child.returncode}; the last cases:\n{log[-4000:]}\n{child.stderr[-2000:]}"
    )
    summary = json.loads(child.stdout)
    called, refused, computed = summary["called"], summary["refused"], summary["computed"]
    total = sum(called.values())
    assert total >= CALLS
    assert set(called) == {*ops.__all__, *OPERATORS} - OF_FILES, "every operation is called"
    # A generator whose calls are all refused, or never exchanged for bad ones, would prove little.
    assert sum(computed.values()) >= 0.4 * total
    assert sum(summary["compared"].values()) >= 0.4 * total
    assert sum(refused.values()) >= 0.15 * total
    for name, count in called.items():
        assert count >= CALLS / 400, f"{name} was called {count} times"
        assert computed[name] >= 0.2 * count, f"{name}: {computed[name]} of {count} calls were computed"
        assert refused[name] >= CALLS / 2_000, f"{name}: {refused[name]} of {count} calls were refused"
    assert summary["constructors"] >= CALLS


@pytest.mark.parametrize("broken", ["tol", "shape"])
def test_the_check_can_fail(broken: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With an expectation that is wrong, a mismatch is found at once."""
    from tests.ml.ops import fuzz_expect, ops_fuzz_child  # noqa: PLC0415 (its import starts nothing, but is not needed above)

    honest = fuzz_expect.EXPECT["rms_norm"]

    def wrong(*args: object, **kwargs: object) -> fuzz_expect.Expected:
        expected = honest(*args, **kwargs)
        if broken == "tol":
            expected.array = expected.array + 0.5
        else:
            expected.array = expected.array[..., :1, :, :].repeat(2, axis=-1)
        return expected

    monkeypatch.setitem(fuzz_expect.EXPECT, "rms_norm", wrong)
    with open(tmp_path / "log", "w", encoding="utf-8", errors="backslashreplace") as log:
        fuzz = ops_fuzz_child.Fuzz(1, log)
        with pytest.raises(ops_fuzz_child.MismatchError, match="rms_norm"):
            fuzz.run(3000)
