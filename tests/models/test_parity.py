"""The gallery of docs/models.md names every architecture, says what files say, and shows differences as measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import parity

SAMPLE = ("apertus", "ernie4_5-moe", "hunyuan-dense", "lfm2", "modern-bert")
"""The quick suite measures one architecture of a few kinds; the whole suite compares every case in test_families."""
OTHER_ROUNDING = 5
"""How many times the difference shown another CPU's kernels may find."""


def shown() -> dict[tuple[str, ...], list[str]]:
    """{architectures: cells} of the page."""
    rows = parity.table(parity.PAGE.read_text(encoding="utf-8")).removeprefix(parity.HEAD).splitlines()
    cells = [row[2:-2].split(" | ") for row in rows]
    return {tuple(name.strip("`") for name in row[0].split(", ")): row for row in cells}


def test_the_gallery_is_what_the_files_say() -> None:
    expected = {entry.architectures: entry for entry in parity.entries()}
    found = shown()
    assert list(found) == list(expected), "docs/models.md lacks a row, or has one too many: make parity"
    for names, entry in expected.items():
        assert (parity.MODELS / entry.path).exists()
        file, lines = found[names][1].removesuffix(" lines").split(", ")
        said = [f"[`{entry.path}`](../ollama_engine/models/{entry.path})", ", ".join(entry.classes), entry.special]
        assert [file, *found[names][2:4]] == said, "it is stale: make parity"
        assert abs(int(lines) - entry.lines) <= max(10, 0.2 * entry.lines), f"{names} has {entry.lines}: make parity"
        assert float(found[names][4]) < 1e-4
        ours, _, theirs = found[names][5].partition(", ")
        assert not theirs or float(ours) <= float(theirs), (
            "float64 is farther from ours than from transformers' float32"
        )


@pytest.mark.parametrize("architecture", SAMPLE)
def test_differences_are_those_shown(architecture: str, tmp_path: Path) -> None:
    row = next(cells for names, cells in shown().items() if architecture in names)
    assert parity.measured(architecture, tmp_path).largest <= OTHER_ROUNDING * float(row[4]), "it is stale: make parity"
