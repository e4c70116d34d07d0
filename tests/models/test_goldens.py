"""Logits and greedy tokens equal the goldens that transformers made; runs where torch is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tests.models import golden
from tests.models.cases import CASES, Case, difference
from tests.support.suite import slow_except


def test_every_golden_has_its_case() -> None:
    assert {path.stem for path in golden.FOLDER.iterdir()} == {case.name for case in CASES}


@pytest.mark.parametrize("flash", slow_except(["on", "off"], "on"))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_and_greedy_tokens(case: Case, flash: Literal["on", "off"], tmp_path: Path) -> None:
    expected = golden.load(case)
    model = case.write(tmp_path)
    assert golden.checksum(model.weights) == expected.checksum, (
        f"numpy {np.__version__} (or gguf's rounding) makes other random weights than when the golden was made; "
        "run python -m tests.models.make_goldens"
    )
    with case.engine(model.path, flash_attention=flash) as engine:
        assert difference(engine.logits(case.prompt)[expected.rows], expected.logits) <= case.tolerance
        if case.greedy:
            assert case.greedy_tokens(engine) == expected.tokens.tolist()
