"""Llama 3.2 Vision beside transformers as it is: what of its reference is mended changes nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.models.cases import difference
from tests.models.reference import import_reference
from tests.models.vision import harness
from tests.models.vision.mllama import MllamaCase
from tests.models.vision.reference import VisionReference

pytestmark = [pytest.mark.reference, pytest.mark.timeout(240)]  # transformers compiles its masks

import_reference()
pytest.importorskip("PIL", reason="Pillow is not installed")

CASE = next(case for case in harness.cases() if case.name == "mllama")
SEEN_FROM_THE_BEGINNING = "runs"
"""A prompt that begins with an image: every row sees one."""


@pytest.fixture
def unmended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VisionReference:
    monkeypatch.setattr(MllamaCase, "mend_rows", lambda case, model: None)
    return VisionReference(CASE, tmp_path)


def test_where_every_row_sees_an_image_nothing_is_mended(unmended: VisionReference) -> None:
    """The goldens' logits, tokens and features are those of transformers' own code."""
    golden = harness.load(CASE)
    found, _ = unmended.answer(CASE.prompts[SEEN_FROM_THE_BEGINNING])
    expected = golden.answers[SEEN_FROM_THE_BEGINNING]
    assert found.tokens == expected.tokens
    assert difference(found.logits, expected.logits) <= 1e-5
    for ours, theirs in zip(found.features, expected.features, strict=True):
        assert difference(ours, theirs) <= 1e-5


def test_rows_before_an_image_are_what_is_mended(unmended: VisionReference) -> None:
    """Otherwise the mending would be for nothing."""
    golden = harness.load(CASE).answers["side by side"]
    found, _ = unmended.answer(CASE.prompts["side by side"])
    assert difference(found.logits, golden.logits) > harness.TOLERANCE
    assert np.array_equal(found.ids, golden.ids)
