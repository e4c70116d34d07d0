"""An engine on a machine that has other work to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ollama_engine.ml.device.placement import usable_cpus
from tests.robustness.busy_child import SHARE

CHILD = Path(__file__).with_name("busy_child.py")


@pytest.mark.slow
@pytest.mark.timing("how the system shares the CPUs between us and processes that never rest")
@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how long threads wait for a CPU")
@pytest.mark.skipif(usable_cpus() < 2, reason="one CPU: there is only one thread")
def test_two_threads_do_not_spin_for_each_other_beside_other_processes() -> None:
    done = subprocess.run([sys.executable, str(CHILD)], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["2"] >= SHARE * found["1"], found
    assert found["in use"] == 1
