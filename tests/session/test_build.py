"""build_digest: builds that may compute other bits differ, and the same one in another place does not."""

from __future__ import annotations

from pathlib import Path

import pytest

import ollama_engine
from ollama_engine.runner.session.build import build_digest


def test_what_is_computed_with_is_in_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(*places: Path) -> str:
        monkeypatch.setattr(ollama_engine, "__path__", list(map(str, places)))
        return build_digest.__wrapped__()

    def package(name: str, **files: str) -> Path:
        for file, text in {"_lib/ggml.so": "a", "ml/ops/nn.so": "b", "models/llama.py": "c", **files}.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / name

    one = digest(package("one"))
    assert digest(package("two")) == one, "wherever it is installed"
    assert digest(package("three", **{"server/app.py": "d", "models/notes.txt": "e"})) == one
    others = {"_lib/ggml.so": "A", "ml/ops/nn.so": "B", "models/llama.py": "C", "kvcache/paged.py": "D"}
    found = [digest(package(f"other{n}", **{file: text})) for n, (file, text) in enumerate(others.items())]
    assert len({one, *found}) == 1 + len(others)
    compiled = tmp_path / "compiled"
    (compiled / "ml").mkdir(parents=True)
    (compiled / "ml" / "more.so").write_text("f")
    assert digest(tmp_path / "one", compiled) != one
