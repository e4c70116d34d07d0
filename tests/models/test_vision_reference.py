"""Models that read images, live beside transformers: prompts with pictures of any size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.models.base import ReadsMedia
from ollama_engine.multimodal.image import MAX_RATIO
from ollama_engine.runner.core.input_processor import prompt_inputs
from tests.models.reference import import_reference
from tests.models.vision import harness
from tests.models.vision.harness import Case, cases
from tests.models.vision.pictures import Picture
from tests.models.vision.reference import VisionReference

pytestmark = pytest.mark.reference

torch, _ = import_reference()
pytest.importorskip("PIL", reason="Pillow is not installed")

SIZES = 200
LONGEST = 1200


@pytest.fixture(scope="module", params=cases(), ids=str)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VisionReference, Engine]]:
    case: Case = request.param
    folder: Path = tmp_path_factory.mktemp("vision-reference")
    torch.set_num_threads(1)
    with harness.engine(harness.converted(case, folder)) as engine:
        yield VisionReference(case, folder / "transformers"), engine


def random_pictures(n: int) -> list[Picture]:
    """Sides from 1 to LONGEST, as many short as long ones, of proportions that are read."""
    sides = np.exp(np.random.default_rng(5).uniform(0, np.log(LONGEST), (n, 2))).astype(int)
    return [
        Picture(int(width), int(height), seed)
        for seed, (width, height) in enumerate(sides)
        if max(width, height) <= MAX_RATIO * min(width, height)
    ]


def test_ids_of_pictures_of_any_size(pair: tuple[VisionReference, Engine]) -> None:
    reference, engine = pair
    for picture in filter(reference.case.takes, random_pictures(SIZES)):
        prompt = ("see", picture, "\n", Picture(20, 30), "it")
        found = prompt_inputs(engine._loaded, reference.case.segments(prompt))
        assert reference.case.ids(found) == reference.ids(prompt), picture


def test_pixels_of_pictures_of_any_size(pair: tuple[VisionReference, Engine]) -> None:
    reference, engine = pair
    model = engine._loaded.model
    assert isinstance(model, ReadsMedia)
    assert model.multimodal is not None
    for picture in filter(reference.case.takes, random_pictures(SIZES // 4)):
        found = model.multimodal.preprocess(picture.draw()).arrays
        for name, expected in reference.arrays(picture).items():
            np.testing.assert_array_equal(found[name], expected, err_msg=f"{picture}: {name}")
