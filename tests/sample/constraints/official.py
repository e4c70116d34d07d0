"""The official JSON-Schema-Test-Suite: which keywords are enforced, which are refused. None is left aside.

    python -m tests.sample.constraints.official      # writes the table into docs/structured-output.md

The source distribution of `jsonschema` carries the suite (MIT); pip downloads it by name, checked by hash, into the
user's cache folder. JSON_SCHEMA_TEST_SUITE=/path/to/JSON-Schema-Test-Suite/tests names a folder of yours.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llguidance import LLMatcher

from bench.real_model import download_package
from ollama_engine.errors import GrammarError
from tests.sample.constraints.accepting import accepts, matcher
from tests.support.cached_folder import put

PACKAGE = "jsonschema==4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
DOCS = Path(__file__).resolve().parents[3] / "docs" / "structured-output.md"
BEGIN, END = "<!-- keywords: begin -->\n", "<!-- keywords: end -->\n"
DRAFTS = ("draft4", "draft6", "draft7", "draft2019-09", "draft2020-12")
NEWEST = DRAFTS[-1]


class Case(NamedTuple):
    """One schema of the suite, and what became of it."""

    file: str
    schema: Any
    refused: GrammarError | None
    wrongly_taken: list[str]
    """Invalid instances that the grammar takes."""
    left_out: list[str]
    """Valid instances that it does not take: it is stricter than the schema."""


def suite_folder(*, download: bool = True) -> Path | None:
    """The folder `tests` of the suite; None where it is neither here nor can be downloaded."""
    if given := os.environ.get("JSON_SCHEMA_TEST_SUITE"):
        return Path(given)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ollama_engine" / "json-schema-tests"
    folder = base / SHA256[:16]
    if folder.exists():
        return folder
    return _download(folder) if download else None


def _download(folder: Path) -> Path | None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temp:
        if not download_package(PACKAGE, SHA256, temp, "--no-binary", "jsonschema"):
            return None
        with tarfile.open(next(Path(temp).glob("*.tar.gz"))) as archive:
            top = archive.getnames()[0].split("/")[0]
            wanted = [m for m in archive.getmembers() if m.isfile() and m.name.startswith(f"{top}/json/tests/")]
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.10.11 and 3.11.3, nor before
            archive.extractall(temp, wanted)
        put(Path(temp) / top / "json" / "tests", folder)
    return folder


def cases(folder: Path, draft: str) -> Iterator[Case]:
    """All schemas of a draft, but true and false."""
    for path in sorted((folder / draft).rglob("*.json")):
        for case in json.loads(path.read_text(encoding="utf-8")):
            if not isinstance(case["schema"], bool):
                yield _tried(path.relative_to(folder / draft).as_posix(), case)


def _tried(file: str, case: Any) -> Case:
    try:
        made = matcher(case["schema"])
    except GrammarError as error:
        return Case(file, case["schema"], error, [], [])
    texts = [(json.dumps(test["data"], ensure_ascii=False), test["valid"]) for test in case["tests"]]
    taken = {text: _takes(made, text) for text, _ in texts}
    return Case(
        file, case["schema"], None,
        [text for text, is_valid in texts if taken[text] and not is_valid],
        [text for text, is_valid in texts if is_valid and not taken[text]],
    )  # fmt: skip


def _takes(made: LLMatcher, text: str) -> bool:
    return accepts(made, text) or accepts(made, json.dumps(json.loads(text)))


def table(folder: Path) -> str:
    """Markdown: for each file of the newest draft, what became of its schemas."""
    counts: dict[str, list[int]] = {}
    for case in cases(folder, NEWEST):
        row = counts.setdefault(case.file.removesuffix(".json"), [0, 0, 0])
        row[0 if case.refused is None else 1] += 1
        row[2] += len(case.left_out)
    lines = ["| tests of | enforced | refused | valid values that are never written |", "|---|---|---|---|"]
    lines += [f"| {name} | {held or ''} | {refused or ''} | {left or ''} |"
              for name, (held, refused, left) in counts.items()]  # fmt: skip
    totals = [sum(row[i] for row in counts.values()) for i in range(3)]
    return "\n".join([*lines, f"| **all** | {totals[0]} | {totals[1]} | {totals[2]} |"]) + "\n"


def main() -> None:
    folder = suite_folder()
    if folder is None:
        raise SystemExit(f"{PACKAGE} cannot be downloaded")
    text = DOCS.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    DOCS.write_text(before + BEGIN + table(folder) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
