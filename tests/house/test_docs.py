"""The Python in the guides runs as it stands, on the demo model."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ollama_engine import demo
from ollama_engine.convert import architecture, transforms
from tests.models import encoders
from tests.store.layout import put_model
from tests.support.media_model import seeing_model

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDES = (
    "index.md", "cookbook.md", "chat.md", "sessions.md", "embeddings.md", "sampling.md", "scoring.md", "ray.md",
)  # fmt: skip


def text_of(guide: str) -> str:
    return (DOCS / guide).read_text(encoding="utf-8")


def blocks(guide: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text_of(guide), flags=re.DOTALL)


BLOCKS = [pytest.param(block, id=f"{guide}-{i}") for guide in GUIDES for i, block in enumerate(blocks(guide))]


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


def test_models_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a store that holds a model."""
    put_model(tmp_path, "registry.ollama.ai/library/story/latest", [("model", demo.path().read_bytes())])
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    for block in blocks("models.md"):
        exec(compile(block, "models.md", "exec"), {})
    assert capsys.readouterr().out.startswith("story:latest ")


def test_convert_guide() -> None:
    """Each line declares tensors, with the names that converters import."""
    names = vars(architecture) | vars(transforms)
    for line in [line for block in blocks("convert.md") for line in block.splitlines()]:
        made = eval(line, dict(names))
        assert isinstance(made[0] if isinstance(made, tuple) else made, architecture.TensorMap)


def test_every_guide_with_python_is_run() -> None:
    """By a test here, or by tests/house/test_coming_from.py and tests/server/test_guides.py."""
    elsewhere = {"structured-output.md", "images.md", "requests.md", "models.md", "convert.md", "server.md"}
    written = {page.name for page in DOCS.glob("*.md") if blocks(page.name) and not page.name.startswith("from-")}
    assert written == {*GUIDES, *elsewhere}


def test_structured_output_guide(capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks follow each other; its types are those of a program's module."""
    pytest.importorskip("pydantic", reason="types as formats need it")
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks("structured-output.md"):
        exec(compile(block, "docs", "exec"), names)
        assert capsys.readouterr().out.strip()


def test_images_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a model that reads images, which the demo model does not."""
    monkeypatch.chdir(tmp_path)
    with seeing_model(tmp_path, "cat.png", "dog.png") as model:
        for block in blocks("images.md"):
            exec(compile(block.replace('"model.gguf"', repr(model)), "images.md", "exec"), {})
            assert capsys.readouterr().out.strip()


def test_requests_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks follow each other; one writes a file."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks("requests.md"):
        exec(compile(block, "docs", "exec"), names)
        assert capsys.readouterr().out.strip()
    assert (tmp_path / "trace.json").stat().st_size > 1000


def test_the_landing_pages_figure_was_measured() -> None:
    """The times to the first token that docs/index.md names are those of docs/performance-serving.md for 16 clients."""
    said = re.search(r"\*\*([\d.]+) seconds\*\* .* for 16 clients .* takes ([\d.]+):", text_of("index.md"))
    page = text_of("performance-serving.md")
    measured = re.search(r"\n\| 16 \|(?:[^|]*\|){4} ([\d,]+) /.*\n(?:[^|]*\|){6} ([\d,]+) /", page)
    assert said is not None
    assert measured is not None
    assert [float(each) for each in said.groups()] == [
        round(int(each.replace(",", "")) / 1000, 1) for each in measured.groups()
    ]
