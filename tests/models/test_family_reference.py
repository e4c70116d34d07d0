"""Folders that transformers saves -> our converter -> our engine: what transformers computes, live."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from ollama_engine.convert import convert_model
from tests.models.cases import GREEDY_STEPS, difference
from tests.models.families import PROMPT_LENGTH, Family, greedy_tokens, running
from tests.models.family_reference import FamilyReference
from tests.models.reference import import_reference

import_reference()

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module", params=running(), ids=str)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Family, str, FamilyReference]:
    case: Family = request.param
    folder = Path(tmp_path_factory.mktemp("reference"))
    reference = FamilyReference(case, folder / "source")
    convert_model(reference.folder, folder / "made.gguf", "f32")
    return case, str(folder / "made.gguf"), reference


@pytest.mark.parametrize("flash", ["on", "off"])
def test_logits_and_greedy_tokens_are_those_of_transformers(
    pair: tuple[Family, str, FamilyReference], flash: Literal["on", "off"]
) -> None:
    case, path, reference = pair
    with case.engine(path, flash_attention=flash) as engine:
        off = difference(engine.logits(case.prompt), reference.logits(case.prompt))
        assert off <= case.tolerance
        tokens = greedy_tokens(engine, case.prompt)
        # Each is the best after all before it; so by induction transformers generates the same.
        best, _ = reference.best_after(case.prompt + tokens)
        assert tokens == best[PROMPT_LENGTH - 1 : -1]
        assert len(tokens) == GREEDY_STEPS
