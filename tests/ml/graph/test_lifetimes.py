"""Closing, dropping, forking, threads and missing memory: whatever comes, the process lives on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tests
from tests.ml.graph.lifetime_child import SCENES
from tests.support.suite import slow_except

QUICK = (
    "graphs_that_come_in_turn",
    "storage_closed_under_a_graph", "arguments_that_close_their_context", "exceptions_inside_with", "never_initialised",
    "threads_share_one_context", "forked_child", "background_computation",
    "threads_have_small_stacks",
)  # fmt: skip
LINUX_ONLY = {"threads_are_not_granted", "address_space_is_short", "threads_have_small_stacks"}


@pytest.mark.parametrize("name", slow_except(SCENES, *QUICK))
def test_the_process_lives_on(name: str) -> None:
    if name in LINUX_ONLY and sys.platform != "linux":
        pytest.skip("only Linux lets a program choose the memory as this scene needs it")
    command = [sys.executable, "-m", "tests.ml.graph.lifetime_child", name]
    root = Path(tests.__file__).parents[1]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=240, check=False)
    assert child.returncode == 0, f"{name} ended with {child.returncode}\n{child.stderr[-3000:]}"
