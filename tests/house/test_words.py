"""Words: a public class name is defined once in the package, and what lives long is called what it holds."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.house.each_file import ROOT, for_each, text_of, tree_of

PACKAGE = ROOT / "ollama_engine"
CLASS = re.compile(r"^(?:cdef )?class ([A-Z]\w*)", re.MULTILINE)
OF_OTHERS = re.compile(r"schemas\.py$|^models/")
"""Bodies of requests are named as each API names them, and every model has its Attention."""
KNOWN = {
    "Embedding": "a result of Engine.embed, and torch's name of the layer",
}


def test_a_public_class_name_is_defined_once() -> None:
    homes = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py*")):
        home = path.relative_to(PACKAGE).as_posix()
        if path.suffix in (".py", ".pyx") and not OF_OTHERS.search(home):
            for name in CLASS.findall(text_of(path)):
                homes[name].append(home)
    twice = {name: found for name, found in homes.items() if len(found) > 1 and name not in KNOWN}
    assert not twice, "a reader who searches for a class finds one: give the others the name of what they are"
    assert set(KNOWN) <= set(homes)


PASSING = {"found", "wanted", "asked", "told"}
"""Names that say how a value came and not what it holds: enough for a few lines."""
MOST_LINES_BELOW = 3
"""Lines from where such a name gets its value to where it is last read."""
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def read_or_bound(scope: Scope) -> Iterator[tuple[str, int, bool]]:
    """(name, line, whether it gets a value) of passing names in a function, without those of functions inside."""
    todo: list[ast.AST] = [scope]
    while todo:
        node = todo.pop()
        if isinstance(node, SCOPES) and node is not scope:
            inner = list(read_or_bound(node))
            own = {name for name, _, binds in inner if binds}
            yield from (each for each in inner if each[0] not in own)
            continue
        if isinstance(node, ast.arg) and node.arg in PASSING:
            yield node.arg, node.lineno, True
        if isinstance(node, ast.Name) and node.id in PASSING:
            yield node.id, node.lineno, isinstance(node.ctx, ast.Store)
        todo += ast.iter_child_nodes(node)


def lives(scope: Scope) -> dict[tuple[str, int], int]:
    """(name, line) of each value that a function gives a passing name: its last line before the next one."""
    everywhere = list(read_or_bound(scope))
    starts = sorted({(line, name) for name, line, binds in everywhere if binds})
    lines = {}
    for start, name in starts:
        end = min((line for line, other in starts if other == name and line > start), default=scope.end_lineno or start)
        lines[name, start] = max(line for other, line, _ in everywhere if other == name and start <= line <= end)
    return lines


@for_each(sorted(PACKAGE.rglob("*.py")))
def test_names_say_what_they_hold(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, SCOPES):
            for (name, start), last in lives(node).items():
                assert last - start <= MOST_LINES_BELOW, f"line {start}: {name!r} lives until {last}: say what it holds"
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            assert node.attr not in PASSING, f"line {node.lineno}: an attribute is called what it holds"
