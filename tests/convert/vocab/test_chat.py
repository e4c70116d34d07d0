"""The chat template is carried over from wherever it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_engine.errors import ModelFormatError
from tests.convert.folders import bpe_tokenizer
from tests.convert.vocab.exporting import export

LIST = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]

PLACES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "nowhere": ({}, {}),
    "config": ({"tokenizer_config.json": {"chat_template": "A"}}, {"": "A"}),
    "config-list": ({"tokenizer_config.json": {"chat_template": LIST}}, {"": "A", ".tool_use": "B"}),
    "jinja": ({"chat_template.jinja": "{{ é }}"}, {"": "{{ é }}"}),
    "jinja-over-config": (
        {"chat_template.jinja": "new", "tokenizer_config.json": {"chat_template": "old"}}, {"": "new"},
    ),
    "json": ({"chat_template.json": {"chat_template": "A"}}, {"": "A"}),
    "more-files": (
        {"chat_template.jinja": "A", "additional_chat_templates/rag.jinja": "C"}, {"": "A", ".rag": "C"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_it_is_found(place: str, tmp_path: Path) -> None:
    files, expected = PLACES[place]
    found = export(tmp_path, {"tokenizer.json": bpe_tokenizer(320), **files}, 320)
    prefix = "tokenizer.chat_template"
    assert {
        k.removeprefix(prefix): v for k, v in found.items() if k.startswith(f"{prefix}.") or k == prefix
    } == expected


@pytest.mark.parametrize("template", [3, [{"name": "x"}], [3]])
def test_what_is_no_text_is_refused(template: Any, tmp_path: Path) -> None:
    files = {"tokenizer.json": bpe_tokenizer(320), "tokenizer_config.json": {"chat_template": template}}
    with pytest.raises(ModelFormatError, match=r"chat_template is .*, expected text"):
        export(tmp_path, files, 320)
