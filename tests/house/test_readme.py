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


def test_readme_has_the_two_commands_and_its_files() -> None:
    assert "make run" in README
    assert "make test" in README
    for target in re.findall(r"\]\(([\w/.]+)\)", README):
        assert (ROOT / target).exists(), f"README links to {target}"
