"""Encoders that transformers saves -> our converter -> our engine: what transformers computes, live."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from ollama_engine.convert import convert_model
from tests.models.cases import difference
from tests.models.encoder_reference import EncoderReference
from tests.models.encoders import DOCUMENT, QUERY, Case, cases
from tests.models.make_encoder_goldens import pair_of, reference_of
from tests.models.reference import import_reference

import_reference()

pytestmark = pytest.mark.reference


@pytest.fixture(scope="module", params=cases(), ids=str)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Case, str, EncoderReference]:
    case: Case = request.param
    folder = Path(tmp_path_factory.mktemp("reference"))
    reference = reference_of(case, folder / "source")
    convert_model(reference.folder, folder / "made.gguf", "f32")
    return case, str(folder / "made.gguf"), reference


@pytest.mark.parametrize("flash", ["on", "off"])
def test_hidden_states_and_scores_are_those_of_transformers(
    pair: tuple[Case, str, EncoderReference], flash: Literal["on", "off"]
) -> None:
    case, path, reference = pair
    with case.engine(path, flash_attention=flash) as engine:
        if case.ranks:
            expected = reference.score(*pair_of(reference.folder))
            assert abs(engine.rank(QUERY, [DOCUMENT]) - expected).max() <= case.tolerance
        else:
            (found,) = engine.embeddings([case.prompt], pooling="none", normalize=False)
            assert difference(found.vector, reference.hidden(case.prompt)) <= case.tolerance
