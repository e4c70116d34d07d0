"""Models that make a vector of an image: published folder -> our converter -> our engine: transformers' vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Media
from ollama_engine.convert import convert_model
from ollama_engine.errors import ModelFormatError
from tests.models.cases import difference
from tests.models.image_encoders import N_CTX, PICTURES, TEXTS, TOLERANCE, Case, cases, converted, load
from tests.models.make_image_encoder_goldens import ImageEncoderReference
from tests.models.vision.pictures import Picture
from tests.support.mmproj import changed

pytest.importorskip("PIL", reason="Pillow is not installed")

each_case = pytest.mark.parametrize("case", cases(), ids=str)
each_dual = pytest.mark.parametrize("case", [case for case in cases() if case.text is not None], ids=str)


@each_case
def test_vectors_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    expected = load(case).vectors
    with case.engine(converted(case, tmp_path)) as engine:
        found = engine.embed_image([picture.file for picture in PICTURES], normalize=False)
        assert difference(found, expected) <= TOLERANCE
        unit = engine.embed_image([picture.draw() for picture in PICTURES])
    cosines = (unit * expected).sum(axis=1) / np.linalg.norm(expected, axis=1)
    np.testing.assert_allclose(cosines, 1, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)


@each_dual
def test_texts_and_images_meet(case: Case, tmp_path: Path) -> None:
    """Texts have transformers' vectors, and one call may have both."""
    golden = load(case)
    with case.engine(converted(case, tmp_path)) as engine:
        found = engine.embed(list(TEXTS), normalize=False)
        assert difference(found, golden.texts) <= TOLERANCE
        mixed: Any = [TEXTS[0], [Media(PICTURES[1].file)], TEXTS[2], [Media(PICTURES[0].draw())]]
        both = engine.embed(mixed, normalize=False)
        assert difference(both[::2], golden.texts[[0, 2]]) <= TOLERANCE
        assert difference(both[1::2], golden.vectors[[1, 0]]) <= TOLERANCE
        assert engine.info.n_embd == found.shape[1]


@pytest.mark.parametrize("keys", [{"padded_length": N_CTX + 1}, {"padding_token_id": None}], ids=str)
def test_texts_are_padded_to_what_the_model_holds(keys: dict[str, Any], tmp_path: Path) -> None:
    case = next(case for case in cases() if case.name == "siglip-dual")
    wrong = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    file = changed(converted(case, tmp_path), tmp_path / "wrong.gguf", wrong)
    told = pytest.raises(ModelFormatError, match=f"padded_length: expected up to {N_CTX}, with a padding_token_id")
    with told, case.engine(file) as engine:
        engine.embed("a")


@pytest.mark.slow
@pytest.mark.reference
@each_case
def test_any_picture_live(case: Case, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")

    reference = ImageEncoderReference(case, tmp_path / "source")
    convert_model(reference.folder, tmp_path / "made.gguf", "f32")
    rng = np.random.default_rng(5)
    pictures = [Picture(int(w), int(h), i) for i, (w, h) in enumerate(rng.integers(2, 300, (40, 2)))]
    with case.engine(tmp_path / "made.gguf") as engine:
        found = engine.embed_image([picture.draw() for picture in pictures], normalize=False)
    assert difference(found, reference.vectors(pictures)) <= TOLERANCE
