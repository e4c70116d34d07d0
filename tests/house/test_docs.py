"""The Python in the guides runs as it stands, on the demo model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ollama_engine import demo
from tests.models import encoders
from tests.support.media_model import seeing_model

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = [
    pytest.param(block, id=f"{guide}-{i}")
    for guide in ("index.md", "cookbook.md", "chat.md", "sessions.md", "embeddings.md", "sampling.md", "scoring.md", "ray.md")
    for i, block in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text(encoding="utf-8"), flags=re.DOTALL)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_block_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # blocks may write files
    if "reranker.gguf" in block:
        encoders.converted(encoders.case("bert-ranker"), tmp_path).rename("reranker.gguf")
    module = ModuleType("docs")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "docs", module)
    exec(compile(block.replace('"model.gguf"', repr(str(demo.path()))), "docs", "exec"), module.__dict__)
    assert capsys.readouterr().out.strip()


def test_structured_output_guide(capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks follow each other; its types are those of a program's module."""
    pytest.importorskip("pydantic", reason="types as formats need it")
    names: dict[str, object] = {"__name__": "__main__"}
    guide = (DOCS / "structured-output.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL):
        exec(compile(block, "docs", "exec"), names)
        assert capsys.readouterr().out.strip()


def test_images_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a model that reads images, which the demo model does not."""
    monkeypatch.chdir(tmp_path)
    guide = (DOCS / "images.md").read_text(encoding="utf-8")
    with seeing_model(tmp_path, "cat.png", "dog.png") as model:
        for block in re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL):
            exec(compile(block.replace('"model.gguf"', repr(model)), "images.md", "exec"), {})
            assert capsys.readouterr().out.strip()


def test_requests_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks follow each other; one writes a file."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(
        r"```python\n(.*?)```", (DOCS / "requests.md").read_text(encoding="utf-8"), flags=re.DOTALL
    ):
        exec(compile(block, "docs", "exec"), names)
        assert capsys.readouterr().out.strip()
    assert (tmp_path / "trace.json").stat().st_size > 1000
