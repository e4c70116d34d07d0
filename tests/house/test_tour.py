"""docs/tour.md names files, classes and functions: all of them are there, as they are spelt."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.each_file import ROOT, text_of, tree_of

TOUR = ROOT / "docs" / "tour.md"
LINK = re.compile(r"\[(?:`([\w/.]+)::([\w.]+)`|[^\]]*)\]\(([^)#]+)(?:#[^)]*)?\)")
SPAN = re.compile(r"`(::)?([A-Za-z_][\w.]*)`")
IN_CYTHON = re.compile(
    r"^(?P<indent> *)(?:cdef +)?(?:class +(?P<cls>\w+)|(?:def|cdef|cpdef)\b[^=(]*?\b(?P<name>\w+)\()"
)
IN_C = re.compile(r"^[a-z][\w *]*?\b(\w+)\(", re.MULTILINE)


def in_python(path: Path) -> Iterator[str]:
    """The functions, classes and constants of a module, and what stands in its classes, as `Class.name`."""
    for node in tree_of(path).body:
        yield from names_of(node)
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for member in node.body for name in names_of(member))


def names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def in_cython(path: Path) -> Iterator[str]:
    """The same of a Cython module, line by line; it has no constants."""
    owner = ""
    for found in filter(None, map(IN_CYTHON.match, text_of(path).splitlines())):
        if found["cls"]:
            owner = found["cls"]
        elif not found["indent"]:
            owner = ""
        name = found["cls"] or found["name"]
        yield f"{owner}.{name}" if found["indent"] else name


def defined_in(path: Path) -> set[str]:
    """What `file::name` may name there."""
    if path.suffix == ".py":
        return set(in_python(path))
    return set(in_cython(path)) if path.suffix == ".pyx" else set(IN_C.findall(text_of(path)))


def faults(page: str, folder: Path) -> list[str]:
    """What a page says of files of this folder and is not so."""
    plain = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    return [fault for section in re.split(r"^#+ ", plain, flags=re.MULTILINE) for fault in faults_in(section, folder)]


def faults_in(section: str, folder: Path) -> Iterator[str]:
    """`::name` belongs to the link before it; any other name in code stands in one of the section's files."""
    files = [(folder / link[3]).resolve() for link in LINK.finditer(section)]
    yield from (f"{path} is not there" for path in files if not path.exists())
    files = [path for path in files if path.is_file()]
    for path, name, shown in names_in(section, folder):
        if not str(path).endswith(f"/{shown}"):
            yield f"{shown} is written, and linked is {path}"
        if path.is_file() and name not in defined_in(path):
            yield f"{path} does not define {name}"
    words = {word for path in files for word in re.findall(r"\w+", text_of(path))}
    for mark, name in SPAN.findall(LINK.sub("", section)):
        if not mark and not set(name.split(".")) <= words:
            yield f"`{name}` stands in none of {[path.name for path in files]}"


def names_in(section: str, folder: Path) -> Iterator[tuple[Path, str, str]]:
    """(file, name, the file as it is written) for each name that belongs to a link."""
    path, shown = folder, ""
    for found in re.finditer(rf"{LINK.pattern}|`::([\w.]+)`", section):
        written, name, target, further = found.groups()
        if target is not None:
            path, shown = (folder / target).resolve(), written or target.lstrip("./")
        if name or further:
            yield path, name or further, shown


def test_what_the_tour_names_is_there() -> None:
    assert not faults(text_of(TOUR), TOUR.parent)


def test_it_names_files_of_every_kind() -> None:
    kinds = {path.suffix for path, _, _ in names_in(text_of(TOUR), TOUR.parent)}
    assert kinds == {".py", ".pyx", ".c"}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_a_reader_finds_it(page: str) -> None:
    assert re.search(r"\]\((?:docs/)?tour\.md\)", (ROOT / page).read_text(encoding="utf-8"))


CORE = "[`core/engine_core.py::{}`](../ollama_engine/runner/core/engine_core.py)"
CELLS = "[`cells.c::{}`](../csrc/kvcache/cells.c)"


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        (CORE.format("EngineCore.step"), None),
        (CORE.format("EngineCore.stepp"), "does not define EngineCore.stepp"),
        (CORE.format("EngineCore.step") + " `::EngineCore.brag`", "does not define EngineCore.brag"),
        (CORE.format("step"), "does not define step"),
        (CORE.format("EngineCore") + " has a `queue`", None),
        (CORE.format("EngineCore") + " has a `queu`", "`queu` stands in none of"),
        (CELLS.format("oe_cells_remove"), None),
        (CELLS.format("oe_cells_remov"), "does not define oe_cells_remov"),
        ("[`_cells.pyx::Cells.remove`](../ollama_engine/kvcache/_cells.pyx)", None),
        ("[`_cells.pyx::Cells.fill_range_mask`](../ollama_engine/kvcache/_cells.pyx)", "does not define"),
        ("[the core](../ollama_engine/runner/core/engine_kore.py)", "is not there"),
        ("[`kore.py::EngineCore`](../ollama_engine/runner/core/engine_core.py)", "is written, and linked is"),
    ],
)
def test_a_misspelt_name_is_found(page: str, fault: str | None) -> None:
    found = faults(page, TOUR.parent)
    assert not found if fault is None else any(fault in each for each in found)
