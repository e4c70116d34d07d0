"""Folders as they are published -> our converter -> our engine: what transformers computed. Runs without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.models import families
from tests.models.cases import difference
from tests.models.families import Family, cases, greedy_tokens, running
from tests.support.suite import slow_except


def test_every_golden_has_its_case() -> None:
    assert {path.stem for path in families.FOLDER.iterdir()} == {case.name for case in cases()}


def test_every_class_has_sources_of_both_types() -> None:
    kinds = {(case.stem, case.dtype) for case in cases()}
    assert kinds == {(case.stem, dtype) for case in cases() for dtype in ("F32", "BF16")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("families"))


@pytest.mark.parametrize("flash", slow_except(["on", "off"], "on"))
@pytest.mark.parametrize("case", running(), ids=str)
def test_logits_and_greedy_tokens(case: Family, flash: Literal["on", "off"], folder: Path) -> None:
    expected = families.load(case)
    with case.engine(families.converted(case, folder), flash_attention=flash) as engine:
        assert difference(engine.logits(case.prompt)[expected.rows], expected.logits) <= case.tolerance
        assert greedy_tokens(engine, case.prompt) == expected.tokens
