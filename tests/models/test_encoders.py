"""Encoders as they are published -> our converter -> our engine: what transformers computed. Runs without torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import TextEncoder, model_class
from tests.models import encoders
from tests.models.cases import difference
from tests.models.encoders import DOCUMENT, QUERY, Case, cases
from tests.models.make_encoder_goldens import pair_of


def test_every_golden_has_its_case() -> None:
    assert {path.stem for path in encoders.FOLDER.iterdir()} == {case.name for case in cases()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("encoders"))


@pytest.mark.parametrize(("flash", "masked"), [("on", False), ("on", True), ("off", True)])
@pytest.mark.parametrize("case", [case for case in cases() if not case.ranks], ids=str)
def test_embeddings(
    case: Case, flash: Literal["on", "off"], masked: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = encoders.load(case)
    if masked:
        encoders.mask_texts(monkeypatch)
    with case.engine(encoders.converted(case, folder), flash_attention=flash) as engine:
        assert isinstance(engine._loaded.model, TextEncoder)
        (every,) = engine.embeddings([case.prompt], pooling="none", normalize=False)
        assert difference(every.vector[expected.rows], expected.hidden) <= case.tolerance
        for pooling, vector in (("mean", expected.mean), ("cls", expected.hidden[0]), ("last", expected.hidden[-1])):
            found = engine.embed(case.prompt, pooling=pooling, normalize=False)
            assert difference(found, case.projected(vector)) <= case.tolerance
        mean = case.projected(expected.mean)
        unit = mean / np.linalg.norm(mean)
        assert difference(engine.embed(case.prompt), unit) <= case.tolerance


@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize("case", [case for case in cases() if case.ranks], ids=str)
def test_scores(case: Case, flash: Literal["on", "off"], folder: Path) -> None:
    expected = encoders.load(case)
    with case.engine(encoders.converted(case, folder), flash_attention=flash) as engine:
        found = engine.rank(QUERY, ["another one", DOCUMENT, ""])
        assert found.shape == (3,)
        assert abs(found[1] - expected.score[0]) <= case.tolerance
        assert len(set(found.tolist())) == 3


@pytest.mark.parametrize("case", [case for case in cases() if case.ranks], ids=str)
def test_pairs_have_the_ids_of_the_tokenizers_library(case: Case, folder: Path) -> None:
    """Scores of tiny models say little about them: one end token instead of two changes the fifth digit."""
    with case.engine(encoders.converted(case, folder)) as engine:
        (pair,) = engine._embedding()._texts.pairs(QUERY, [DOCUMENT], "error", False, None)
    assert pair.tokens.tolist() == pair_of(folder / case.name)[0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", cases(), ids=str)
def test_texts_in_one_batch_do_not_see_each_other(
    case: Case, masked: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if masked:
        encoders.mask_texts(monkeypatch)
    texts = [case.prompt, case.prompt[:9], [5], case.prompt[20:60], case.prompt[::-1]]
    with case.engine(encoders.converted(case, folder)) as engine:
        alone = [engine.embed(text, pooling="mean", normalize=False) for text in texts]
        together = engine.embed(texts, pooling="mean", normalize=False)
        assert difference(together, np.stack(alone)) <= case.tolerance
        # Not one hidden state of a text depends on the batch, whether its first, its last or one in between is read.
        rows = engine.embeddings(texts, pooling="none", normalize=False)
        for text, row in zip(texts, rows, strict=True):
            (expected,) = engine.embeddings([text], pooling="none", normalize=False)
            assert difference(row.vector, expected.vector) <= case.tolerance


OPTIONAL = {
    "dense_2.weight", "dense_3.weight", "token_types.weight", "cls.weight", "cls.bias", "cls.norm.weight",
    "cls.output.weight", "cls.output.bias",
}  # fmt: skip


@pytest.mark.parametrize("case", cases(), ids=str)
def test_every_missing_or_misshapen_tensor_is_named(case: Case, folder: Path) -> None:
    with (
        GGUFFile(encoders.converted(case, folder)) as gguf,
        Backend(BackendParams(threads=1, gpu_layers=0)) as backend,
        Weights(backend, gguf) as weights,
        Storage(backend, 1) as storage,
    ):
        weights.load()
        model, metadata = model_class(gguf.architecture), Metadata(gguf.metadata)
        wrong = storage.add("wrong", "f32", (3, 5, 7))
        storage.allocate(0)
        assert not model(metadata, weights).unused_weights
        for name in weights:
            others = {n: w for n, w in weights.items() if n != name}
            if name not in OPTIONAL and not name.endswith("ffn_down_exps.bias"):
                with pytest.raises(ModelFormatError, match=rf"no tensor.* {re.escape(name)}"):
                    model(metadata, others)
            if name != "token_embd.weight":  # what the vocabulary is measured by
                with pytest.raises(ModelFormatError, match=re.escape(name)):
                    model(metadata, {**others, name: wrong})


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
@pytest.mark.parametrize("case", [case for case in cases() if not case.ranks and case.dtype == "F32"], ids=str)
def test_smaller_types_are_near(case: Case, outtype: str, folder: Path) -> None:
    expected = case.projected(encoders.load(case).mean)
    with case.engine(encoders.converted(case, folder, outtype)) as engine:
        assert float(engine.embed(case.prompt) @ expected / np.linalg.norm(expected)) > 0.999
