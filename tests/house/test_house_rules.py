"""House rules, as far as text can show them: layering, names, sizes, and what must be said in one place only."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ollama_engine
from tests.house.each_file import ROOT, for_each, text_of, tree_of

PACKAGE = ROOT / "ollama_engine"
MODULES = sorted(PACKAGE.rglob("*.py"))
CYTHON = sorted([*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd")])
C_SOURCES = sorted((ROOT / "csrc").rglob("*.[ch]"))

MAX_PYTHON_LINES = 330
MAX_CYTHON_LINES = 400
MAX_C_LINES = 420
MAX_FUNCTION_LINES = 70
MAX_COLUMNS = 120
MAX_LATE_IMPORTS = 60
# One row for each name: a table is read, not understood.
TABLES = {"pretokenizer_table.py", "libggml.pxd"}
# The public constructor lists its options once in its signature, once for readers, once for EngineConfig.
LONG_FUNCTIONS = {"engine.py:__init__"}


def lines(path: Path) -> int:
    return len(text_of(path).splitlines())


@for_each(MODULES)
def test_module_says_what_it_owns(path: Path) -> None:
    assert ast.get_docstring(tree_of(path)), "a module starts with a docstring"


@for_each(MODULES)
def test_sizes(path: Path) -> None:
    if path.name in TABLES:
        return
    assert lines(path) <= MAX_PYTHON_LINES, "one responsibility each; split it"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            known = f"{path.name}:{node.name}" in LONG_FUNCTIONS
            assert known or length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


@for_each(CYTHON)
def test_cython_sizes(path: Path) -> None:
    assert path.name in TABLES or lines(path) <= MAX_CYTHON_LINES, "one responsibility each; split it"


@for_each(C_SOURCES)
def test_c_sizes(path: Path) -> None:
    assert lines(path) <= MAX_C_LINES, "one responsibility each; split it"


@for_each(MODULES)
def test_all_is_sorted_and_true(path: Path) -> None:
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names = ast.literal_eval(node.value)
            assert len(names) == len(set(names)), "__all__ names something twice"
            assert names == sorted(names, key=natural), "__all__ is sorted"


def natural(name: str) -> tuple[int, str]:
    """The order that the linter keeps: CONSTANTS, Classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def late_imports(path: Path) -> list[ast.stmt]:
    """Imports inside functions."""
    functions = [n for n in ast.walk(tree_of(path)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inner = {n for function in functions for n in ast.walk(function) if isinstance(n, (ast.Import, ast.ImportFrom))}
    return sorted(inner, key=lambda node: node.lineno)


def test_few_imports_are_late() -> None:
    """Each costs a reader the map at a module's head: only what a start would wait for, or an extra has, is late."""
    homes = {path.relative_to(ROOT).as_posix(): len(late_imports(path)) for path in MODULES}
    most = sorted(((n, home) for home, n in homes.items() if n), reverse=True)
    n_late = sum(homes.values())
    assert n_late <= MAX_LATE_IMPORTS, (
        f"{n_late} imports inside functions, at most {MAX_LATE_IMPORTS}; move one to the head of a module "
        f"that is itself imported late, or make two in a file one: {most[:9]}"
    )


@for_each(MODULES)
def test_late_imports_say_why(path: Path) -> None:
    source = text_of(path).splitlines()
    for node in late_imports(path):
        line = source[node.lineno - 1]
        assert re.search(r"# noqa:.* PLC0415 \(.+\)$", line), f"line {node.lineno}: write # noqa: PLC0415 (its reason)"


def test_no_attic() -> None:
    attics = [p for p in PACKAGE.rglob("*") if re.fullmatch(r"(utils?|helpers?|common|misc)(\.py|\.pyx)?", p.name)]
    assert not attics, "name the thing instead"


@for_each(CYTHON)
def test_only_ml_sees_ggml(path: Path) -> None:
    if "ml" not in path.parts:
        assert "libggml" not in text_of(path), "ggml pointers stay in ml/"


@for_each(CYTHON)
def test_nogil_functions_say_how_they_fail(path: Path) -> None:
    """A nogil function with neither noexcept nor an exception value takes the GIL again after every call."""
    in_extern = False
    for line in text_of(path).splitlines():
        in_extern = line.startswith("cdef extern") or (in_extern and (not line or line[0] in " #"))
        if not in_extern and re.search(r"^\s*cdef .*\)\s.*\bnogil:", line):
            assert re.search(r"\bnoexcept\b|\bexcept\b", line), line.strip()


@for_each(MODULES)
def test_environment_is_read_at_the_rim(path: Path) -> None:
    """And where Ollama's models are: an Engine and the command line mean the same model by a name."""
    if path.relative_to(PACKAGE).parts[0] not in ("cli", "server"):
        text = re.sub(r'os\.environ\.get\("(OLLAMA_MODELS|XDG_CACHE_HOME)", ""\)', "", text_of(path))
        assert not re.search(r"os\.(environ|getenv)", text), "only cli/ and server/ may"


@for_each(C_SOURCES)
def test_c_has_no_python_and_our_prefix(path: Path) -> None:
    text = text_of(path)
    assert "Python.h" not in text
    if path.suffix == ".h":
        names = re.findall(r"^(?:[a-z_0-9]+[ *]+)+([a-z_0-9]+)\(", text, flags=re.MULTILINE)
        assert all(name.startswith("oe_") for name in names), names


@for_each(C_SOURCES)
def test_c_lines_fit(path: Path) -> None:
    text = text_of(path)
    assert not [line for line in text.splitlines() if len(line) > MAX_COLUMNS]


def test_build_requirements_agree() -> None:
    """The Makefile repeats pyproject's list, because Python 3.10 has no TOML reader to take it from there."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^BUILD_REQUIRES := (.*)$", makefile, flags=re.MULTILINE)
    required = re.search(r"^requires = \[(.*)\]$", pyproject, flags=re.MULTILINE)
    assert listed is not None
    assert required is not None
    # Without build isolation nothing adds these two.
    tools = {"cmake>=3.26", "ninja>=1.11"}
    assert set(listed[1].split()) == {*re.findall(r'"([^"]+)"', required[1]), *tools}


def test_the_version_is_said_in_one_place() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r"^version =", pyproject, flags=re.MULTILINE) is None
    assert importlib.metadata.version("ollama_engine") == ollama_engine.__version__


def test_rooms_import_downwards_only() -> None:
    tool = shutil.which("lint-imports") or str(Path(sys.executable).parent / "lint-imports")
    if not Path(tool).exists():
        pytest.skip("import-linter is not installed (extra: lint); `make lint` runs it")
    result = subprocess.run([tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
