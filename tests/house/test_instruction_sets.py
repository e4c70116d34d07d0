"""No test goes silently through those kernels alone that run on this CPU: tests/support/instruction_sets.py."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
SILENT = re.compile(
    r"(\bfor \w+ in |\*|parametrize\([^\n]*)(small_batch|paged_attention|sampler)_instructions\("
    r"|pytest\.skip\(f?\"this CPU"
)
IN_CHILDREN = {"ml/graph/scenes_small_batch.py", "robustness/cpu_child.py"}
"""Programs that tests start, and that report to no run."""


def test_what_does_not_run_here_is_counted() -> None:
    found = {}
    for path in TESTS.rglob("*.py"):
        name = str(path.relative_to(TESTS))
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if SILENT.search(line)]
        if lines and name not in IN_CHILDREN and path != Path(__file__):
            found[name] = lines
    assert not found, "use `runnable` or `every` of tests/support/instruction_sets.py"
