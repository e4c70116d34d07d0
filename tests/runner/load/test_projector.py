"""Vision parts in files of their own: the same answers as one file, sessions that know both, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.errors import (
    ConfigError,
    ModelFormatError,
    SessionFormatError,
    UnsupportedInputError,
    UnsupportedModelError,
)
from ollama_engine.models.projectors import PAIRS, find_projector
from ollama_engine.option_names import meant
from tests.models.vision import harness
from tests.support.mmproj import GEMMA3, changed, cut
from tests.support.tiny import write_tiny_llama

CASE = next(case for case in harness.cases() if case.name == "gemma3")
PROMPT = CASE.segments(CASE.prompts["two"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return harness.converted(CASE, Path(tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module")
def pair(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return cut(whole, Path(tmp_path_factory.mktemp("pair")), GEMMA3)


@pytest.fixture(scope="module")
def engine(pair: tuple[Path, Path]) -> Iterator[Engine]:
    with harness.engine(pair[0], projector=pair[1]) as opened:
        yield opened


def test_a_pair_answers_as_one_file_does(whole: Path, pair: tuple[Path, Path], engine: Engine) -> None:
    with harness.engine(whole) as single:
        for name in CASE.prompts:
            segments = CASE.segments(CASE.prompts[name])
            expected = single.generate(segments, harness.greedy(CASE))
            assert engine.generate(segments, harness.greedy(CASE)).tokens == expected.tokens
        assert engine.info.n_parameters == single.info.n_parameters
    assert engine.info.file_bytes == sum(path.stat().st_size for path in pair)
    assert engine.info.path == str(pair[0])
    with harness.engine(pair[0]) as text, pytest.raises(UnsupportedInputError, match="reads text only"):
        text.generate(PROMPT)


def test_a_projector_that_is_not_read_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """It was left out, and the engine answered text only."""
    part = changed(pair[1], tmp_path / "part.gguf", {}, {"v.patch_embd.weight": None})
    with pytest.raises(ModelFormatError, match="the projector has no tensor of patches that gemma3 reads"):
        harness.engine(pair[0], projector=part)


def test_a_tensor_too_many_is_named(whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log said that images are not read, which they are."""
    extra = changed(whole, tmp_path / "whole.gguf", {}, {"v.more.weight": np.zeros(32, np.float32)})
    with harness.engine(extra) as engine:
        assert engine.generate(PROMPT, harness.greedy(CASE)).tokens
    assert "v.more.weight" in caplog.text
    assert "text only" not in caplog.text


def test_swapped_feed_forward_names(pair: tuple[Path, Path], engine: Engine, whole: Path, tmp_path: Path) -> None:
    """Trap: very old clip files call the first matrix ffn_down."""
    text, part = cut(whole, tmp_path, GEMMA3, swapped=True)
    with harness.engine(text, projector=part) as old:
        assert old.generate(PROMPT, harness.greedy(CASE)).tokens == engine.generate(PROMPT, harness.greedy(CASE)).tokens


def test_a_session_knows_its_projector(pair: tuple[Path, Path], engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "session"
    with engine.session() as session:
        session.append(PROMPT)
        session.save(file)
        expected = session.generate(harness.greedy(CASE)).tokens
    with harness.engine(pair[0], projector=pair[1]) as again, again.load_session(file) as loaded:
        assert loaded.generate(harness.greedy(CASE)).tokens == expected
    with harness.engine(pair[0]) as text, pytest.raises(SessionFormatError):
        text.load_session(file)
    other = tmp_path / "other.gguf"
    shutil.copy(pair[1], other)
    with open(other, "r+b") as changed:
        changed.seek(-1024, 2)
        changed.write(bytes(1024))
    with harness.engine(pair[0], projector=other) as another, pytest.raises(SessionFormatError):
        another.load_session(file)


def test_what_does_not_belong_together(pair: tuple[Path, Path], whole: Path, tmp_path: Path) -> None:
    text, part = pair
    llama = write_tiny_llama(tmp_path / "llama.gguf").path
    with pytest.raises(ConfigError, match=r"projector is a file of architecture 'gemma3', and not the vision part"):
        Engine(text, projector=text)
    with pytest.raises(UnsupportedModelError, match=r"vision part of a model .* as its projector"):
        Engine(part)
    with pytest.raises(ConfigError, match=r"projector is of the type 'gemma3', and a text model of architecture llama"):
        Engine(llama, projector=part)
    with pytest.raises(ConfigError, match=r"projector is given, but the model's own file has a part that reads images"):
        Engine(whole, projector=part)
    _, strange = cut(whole, tmp_path, GEMMA3, kind="resampler")
    with pytest.raises(ConfigError, match=r"of the type 'resampler', and .* gemma3 takes gemma3"):
        Engine(text, projector=strange)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Engine(text, projector="nowhere.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(part.read_bytes()[:300])
    with pytest.raises(ModelFormatError, match=r"broken\.gguf"):
        Engine(text, projector=broken)


def test_every_row_of_the_table_has_its_module() -> None:
    for text, whole in PAIRS:
        projector = import_module(f"ollama_engine.models.{whole}.projector").PROJECTOR
        assert projector.architecture == whole or "{}" in projector.architecture
        for kind in projector.types:
            assert find_projector(text, {"general.architecture": "clip", "clip.projector_type": kind}) is projector


def test_names_of_other_engines() -> None:
    assert meant("mmproj", ["model", "projector"]) == "projector"
