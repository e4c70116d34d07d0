"""bench/every_type.py goes on where it was stopped, and its table says what was measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import every_type
from bench.every_type import Figures

MIB = 1 << 20


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Both sides answer at once, ours twice as fast and faster each time; the names of the files they got."""
    calls: list[str] = []

    def ours(model: Path, threads: int) -> Figures:
        calls.append(model.name)
        n = len(calls)
        return Figures(200.0 + n, 20.0, 100.0, 90.0, 40.0, 300 * MIB, 50 * MIB)

    def peer(model: Path, threads: int) -> Figures:
        return Figures(100.0, 10.0, 80.0, 75.0, 20.0, 500 * MIB)

    monkeypatch.setattr(every_type, "SIDES", {"ours": ours, "llama_cpp": peer})
    monkeypatch.setattr(every_type, "tool", lambda name: name)
    monkeypatch.setattr(every_type, "find_model", lambda folder, name: folder / name)
    return calls


def test_rounds_that_are_there_are_not_measured_again(
    tmp_path: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [str(tmp_path), "-t", "2", "--files", "llama-1b:q5_0", "llama-1b:q2_k"]
    every_type.main([*asked, "--rounds", "1"])
    assert measured == ["llama-1b:q5_0", "llama-1b:q2_k"]
    every_type.main([*asked, "--rounds", "3"])
    assert sorted(measured) == ["llama-1b:q2_k"] * 3 + ["llama-1b:q5_0"] * 3
    capsys.readouterr()
    every_type.main([*asked, "--table"])
    assert len(measured) == 6
    line = capsys.readouterr().out.splitlines()[2]
    assert line == (
        "| llama-1b:q5_0 | 20.0 / 10.0 = **2.00** | 203.0 / 100.0 = **2.03** | 40.0 / 20.0 = **2.00** "
        "| 90.0 / 75.0 = **1.20** | 0.90 | 300 / 500 | 50 |"
    )


@pytest.mark.usefixtures("measured")
def test_figures_of_other_threads_are_not_mixed(tmp_path: Path) -> None:
    asked = [str(tmp_path), "--files", "llama-1b:q5_0", "--rounds", "1"]
    every_type.main([*asked, "-t", "2"])
    with pytest.raises(SystemExit, match="is of 2 threads"):
        every_type.main([*asked, "-t", "1"])


def test_files_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        every_type.main(["folder", "--files", "llama-1b:q9"])
    assert "SHAPE:TYPE" in capsys.readouterr().err


@pytest.mark.parametrize(("program", "said"), [("every_type", "--rounds"), ("make_model", "gguf is not installed")])
def test_help_without_the_package_gguf(program: str, said: str) -> None:
    path = str(Path(every_type.__file__).with_name(f"{program}.py"))
    run = f"sys.argv[1:] = ['--help']; runpy.run_path({path!r}, run_name='__main__')"
    code = f"import runpy, sys; sys.modules['gguf'] = None; {run}"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert said in child.stdout + child.stderr
    assert "Traceback" not in child.stderr
