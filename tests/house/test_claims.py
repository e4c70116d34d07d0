"""docs/reliability.md has a test for each promise of the README, docs/performance*.md a machine for each table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABSOLUTE = re.compile(
    r"\b(?:never|always|every|everything|all|any|anything|each|no|none|nothing|nobody|cannot)\b", re.IGNORECASE
)
TEST = re.compile(r"`(tests/[\w/.]+?)(?:::(\w+))?`")
LIMITS = {"CUDA has been run on an NVIDIA H200, the others on no physical GPU yet"}
"""What the README says of itself and no test can hold."""


def text_of(page: str) -> str:
    """A page in one line, without blocks of code, targets of links and bold marks."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "").split())


def claims() -> dict[str, str]:
    """{what the README says: the cell that names tests}."""
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    table = page[page.index("| the README says |") :].split("\n\n", 1)[0]
    found = {}
    for line in table.splitlines()[2:]:
        claim, tests = line.strip("| ").split(" | ")
        found[claim] = tests
    return found


def not_covered(readme: str, quotes: list[str]) -> list[str]:
    """Absolute words of a text that stand in none of the quotes, each with what is around it."""
    plain = re.sub(r"`[^`]*`", lambda code: "x" * len(code[0]), readme)
    spans = [(at := readme.index(quote), at + len(quote)) for quote in quotes]
    return [
        readme[max(0, word.start() - 50) : word.end() + 50]
        for word in ABSOLUTE.finditer(plain)
        if not any(begin <= word.start() and word.end() <= end for begin, end in spans)
    ]


@pytest.mark.parametrize("claim", claims())
def test_the_readme_says_it(claim: str) -> None:
    assert text_of("README.md").count(claim) == 1


def test_every_promise_of_the_readme_has_a_row() -> None:
    missing = not_covered(text_of("README.md"), list(claims()))
    assert not missing, f"docs/reliability.md, 'What the README says', names no test for: {missing}"


@pytest.mark.parametrize("claim", sorted(set(claims()) - LIMITS))
def test_its_tests_exist(claim: str) -> None:
    found = TEST.findall(claims()[claim])
    assert found, f"no test is named for: {claim}"
    for path, name in found:
        file = ROOT / path
        assert file.is_file() or (file.is_dir() and not name), f"{path} is not there"
        if name:
            defined = rf"^(?:async )?def {name}\("
            assert re.search(defined, file.read_text(encoding="utf-8"), re.MULTILINE), f"{path} has no {name}"


def test_a_promise_without_a_row_is_found() -> None:
    assert not_covered("It never fails. `--no-x` is an option.", []) == ["It never fails. `--no-x` is an option."]
    assert not_covered("It never fails.", ["never fails"]) == []


PAGES = sorted({*(ROOT / "docs").glob("performance*.md")} - {ROOT / "docs/performance-history.md"})


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_table_of_figures_says_where_it_was_measured(path: Path) -> None:
    """The line "Measured on", "measured on the same" stands between a table and the one before it, or the heading."""
    page = path.read_text(encoding="utf-8")
    blocks = re.sub(r"```.*?```", "", page, flags=re.DOTALL).split("\n\n")
    told = False
    for block in blocks:
        if not block.lstrip().startswith("|"):
            told = (told and not block.startswith("#")) or bool(re.search(r"\bmeasured\s+on\b", block, re.IGNORECASE))
        elif len(re.findall(r"\| *\*{0,2}\d", block)) >= 4:
            assert told, f"no line says where this was measured, and how often:\n{block[:300]}"
            told = False
