"""Logits and greedy tokens equal those of Hugging Face transformers, computed live from the same random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.models.cases import CASES, GREEDY_STEPS, Case, difference
from tests.models.reference import Reference, import_reference

import_reference()

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, str, Reference]:
    case: Case = request.param
    model = case.write(Path(tmp_path_factory.mktemp("reference")))
    return case, model.path, Reference(case, model)


@pytest.mark.parametrize("flash", ["on", "off"])
def test_logits_and_greedy_tokens_are_those_of_transformers(
    pair: tuple[Case, str, Reference], flash: Literal["on", "off"]
) -> None:
    case, path, reference = pair
    with case.engine(path, flash_attention=flash) as engine:
        assert difference(engine.logits(case.prompt), reference.logits(case.prompt)) <= case.tolerance
        if case.greedy:
            tokens = case.greedy_tokens(engine)
            # Each is the best after all before it; so by induction transformers generates the same.
            best, _ = reference.best_after(case.prompt + tokens)
            assert tokens == best[case.prompt_length - 1 : -1]
            assert len(tokens) == GREEDY_STEPS
