"""No test waits for ever: pytest limits each, and what runs beyond its reach has limits of its own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.house.each_file import ROOT, for_each, text_of, tree_of

TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
MARK = re.compile(r"^.*mark\.timeout\(.*$", re.MULTILINE)
MAY_WAIT = re.compile(r"\bwaitpid\b|\.join\(\s*[)#]|^\s*while\b", re.MULTILINE)
"""A file without any of these is not parsed: nine of ten, and parsing all takes 10 s of CPU."""


def test_a_test_that_fails_ends_within_a_minute() -> None:
    assert "\ntimeout = 60\n" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def is_unlimited(call: ast.Call) -> bool:
    """`thread.join()`, `os.waitpid(...)`: also where a test cleans up, which pytest's limit does not cover."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name == "waitpid" or (name == "join" and not call.args and not call.keywords)


def only_waits(statement: ast.stmt) -> bool:
    """`time.sleep(0.01)`: a loop of these never ends where what it waits for has come and gone."""
    return ast.unparse(statement).startswith("time.sleep(")


def has_no_limit(node: ast.AST) -> bool:
    if isinstance(node, ast.While):
        return all(map(only_waits, node.body))
    return isinstance(node, ast.Call) and is_unlimited(node)


@for_each(TESTS)
def test_waits(path: Path) -> None:
    nodes = ast.walk(tree_of(path)) if MAY_WAIT.search(text_of(path)) else ()
    found = [ast.unparse(node) for node in nodes if has_no_limit(node)]
    assert not found or path.name == "waiting.py", (
        "it has no limit: take `join`, `status_of` or `eventually` of tests/support/waiting.py"
    )
    untold = [line for line in MARK.findall(text_of(path)) if not re.search(r"  # \S+ \S+", line)]
    assert not untold, "a longer limit has its reason behind it: `pytest.mark.timeout(120)  # what takes so long`"
