"""What the system says about its CPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ollama_engine.ml.threads import machine_load
from ollama_engine.ml.threads.machine_load import CpuUse, CpuUseMeter, waiting_threads
from tests.support.waiting import eventually

STAT = """cpu  100 0 100 800 0 0 0 0 0 0
cpu0 {busy0} 0 0 {idle0} 0 0 0 {stolen} 0 0
cpu1 {busy1} 0 0 {idle1} 7 0 0 0 0 0
cpu10 5 5 5 5 5 5 5 5 5 5
intr 12345 6 7
"""


@pytest.fixture
def process_seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of CPU that this process has used, to set."""
    seconds = [0.0]
    monkeypatch.setattr(machine_load.time, "process_time", lambda: seconds[0])
    return seconds


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="no clock ticks on this system")
def test_use_of_the_cpus_since_the_last_call(tmp_path: Path, process_seconds: list[float]) -> None:
    tick = 1 / os.sysconf("SC_CLK_TCK")
    path = tmp_path / "stat"
    path.write_text(STAT.format(busy0=10, idle0=10, busy1=10, idle1=10, stolen=0))
    meter = CpuUseMeter({0, 1}, path)
    # In 100 ticks: CPU 0 worked for 50, of which this process had 40, and lost 50 to its host; CPU 1 was idle for 75.
    path.write_text(STAT.format(busy0=60, idle0=10, busy1=35, idle1=85, stolen=50))
    process_seconds[0] = 40 * tick
    use = meter()
    assert use == pytest.approx((0.75, (50 + 50 + 25 - 40) / 100))
    assert meter() is None  # no time has passed


@pytest.mark.parametrize("text", [None, "", "cpu0 1 2\n", "cpu0 a b c d e f g h\n"])
def test_a_system_that_does_not_say(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    meter = CpuUseMeter({0}, path)
    assert meter() is None
    assert waiting_threads(path) is None


def test_waiting_threads(tmp_path: Path) -> None:
    path = tmp_path / "loadavg"
    path.write_text(f"0.20 0.18 0.12 {(os.cpu_count() or 1) + 3}/80 11206\n")
    assert waiting_threads(path) == 3


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="Linux counts")
def test_this_machine() -> None:
    meter = CpuUseMeter(os.sched_getaffinity(0))
    uses: list[CpuUse] = []

    def time_has_passed() -> bool:
        use = meter()
        uses.extend([] if use is None else [use])
        return use is not None

    eventually(time_has_passed)
    use = uses[0]
    assert 0 <= use.idle <= len(os.sched_getaffinity(0))
    assert use.others >= 0
    waiting = waiting_threads()
    assert waiting is not None
    assert waiting > -(os.cpu_count() or 1)  # who reads it runs
