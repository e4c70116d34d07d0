"""The README's Python runs as it stands, on the demo model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ollama_engine import demo

PICTURE = "demo.picture_path()"
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_python_block_with_images_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = [block for block in BLOCKS if PICTURE in block]
    exec(compile(block, "README.md", "exec"), {})
    assert re.findall(r"^    # (.*)$", block, re.MULTILINE) == [capsys.readouterr().out.strip()]


SERVER = "http://127.0.0.1:11434"
"""In blocks that need a server; tests/server/test_guides.py runs them."""
TEXT_BLOCKS = [block for block in BLOCKS if PICTURE not in block and SERVER not in block]


@pytest.mark.parametrize("block", TEXT_BLOCKS, ids=[f"block {i}" for i in range(len(TEXT_BLOCKS))])
def test_python_block_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block.replace('"model.gguf"', repr(str(demo.path()))), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_readme_has_the_two_commands() -> None:
    assert "make run" in README
    assert "make test" in README


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")]


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        if "://" not in target:
            linked = page.parent / name if name else page
            assert linked.exists(), target
            assert not anchor or anchor in _anchors(linked), target


def _anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
