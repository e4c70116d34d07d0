"""Where ggml's backends are looked for: a portable build has none but those that it finds there."""

from __future__ import annotations

from pathlib import Path

from ollama_engine.ml.device import device


def test_it_is_where_they_are_installed() -> None:
    folder = Path(device._library_folder())  # type: ignore[attr-defined]
    assert list(folder.glob("*ggml-base-oe*")), f"no library of ggml in {folder}"
