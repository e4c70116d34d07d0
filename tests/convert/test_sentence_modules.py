"""The modules of sentence-transformers -> keys and tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_engine.convert.sentence_modules import SentenceModules
from ollama_engine.convert.source.folder import ModelFolder
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from tests.convert.folders import write_json

TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}


def keys(path: Path, pooling: Any, modules: Any = (TRANSFORMER, POOLING, NORMALIZE)) -> dict[str, int]:
    (path / "1_Pooling").mkdir()
    write_json(path / "modules.json", list(modules) if isinstance(modules, tuple) else modules)
    if pooling is not None:
        write_json(path / "1_Pooling" / "config.json", pooling)
    return SentenceModules(ModelFolder(path)).keys


@pytest.mark.parametrize(
    ("pooling", "number"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, 1),
        ({"pooling_mode_cls_token": True}, 2),
        ({"pooling_mode_lasttoken": True, "include_prompt": True}, 3),
        ({"pooling_mode": "mean"}, 1),
        ({"pooling_mode": "cls"}, 2),
        ({"pooling_mode": "lasttoken"}, 3),
    ],
)
def test_pooling(pooling: dict[str, Any], number: int, tmp_path: Path) -> None:
    assert keys(tmp_path, pooling) == {"pooling_type": number}


def test_nothing_is_said(tmp_path: Path) -> None:
    assert SentenceModules(ModelFolder(tmp_path)).keys == {}


def test_modules_without_pooling(tmp_path: Path) -> None:
    assert keys(tmp_path, None, (TRANSFORMER,)) == {}


WRONG: list[tuple[Any, Any, type[Exception], str]] = [
    ({"pooling_mode_max_tokens": True}, (TRANSFORMER, POOLING), UnsupportedModelError, "pooling is max_tokens; supp"),
    ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, (TRANSFORMER, POOLING), UnsupportedModelError,
     "pooling is cls and mean"),
    ({}, (TRANSFORMER, POOLING), UnsupportedModelError, "pooling is None"),
    (None, (TRANSFORMER, POOLING), ModelFormatError, r"1_Pooling.config\.json is missing"),
    ({"pooling_mode": "mean"}, (TRANSFORMER, POOLING, DENSE), ModelFormatError, r"2_Dense.config\.json is missing"),
    ({"pooling_mode": "mean"}, (TRANSFORMER, POOLING, {**DENSE, "type": "WordWeights"}), UnsupportedModelError,
     "module 'WordWeights' is not supported"),
    ({"pooling_mode": "mean"}, {"type": 1}, ModelFormatError, "not a list of modules"),
    ({"pooling_mode": "mean"}, ({"type": "Pooling"},), ModelFormatError, "not a list of modules"),
]  # fmt: skip


@pytest.mark.parametrize(("pooling", "modules", "kind", "message"), WRONG)
def test_what_no_file_can_say(pooling: Any, modules: Any, kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        keys(tmp_path, pooling, modules)
