"""A draft model: answers are those without it, whatever it guesses; what it must be, and what it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.runner.load.draft_parts import can_draft, refuse_other_vocabulary
from ollama_engine.runner.speculative.draft_model import DraftModel
from tests.support import drafted_answers
from tests.support.deeper_model import write_deeper
from tests.support.drafted_answers import compared
from tests.support.suite import scaled
from tests.support.tiny import write_tiny_llama

GREEDY = SamplingParams(temperature=0, max_tokens=60)
STORIES = ("One day, a little cat", "Tom and Ann went to", "The big dog was sad because")


@pytest.fixture(scope="module")
def deeper(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_deeper(demo.path(), tmp_path_factory.mktemp("deeper") / "deeper.gguf", 1, 0.05)


@pytest.fixture(scope="module")
def engine(deeper: str) -> Iterator[Engine]:
    with Engine(
        deeper, draft="model", draft_model=demo.path(), num_ctx=256, parallel=4, threads=1, verify=True
    ) as made:  # fmt: skip
        yield made


@pytest.fixture
def eager() -> Iterator[None]:
    with drafted_answers.eager(by_model=True):
        yield


@pytest.mark.parametrize("seed", range(scaled(30, quick=4)))
def test_answers_in_any_company_are_those_without_drafts(engine: Engine, seed: int) -> None:
    """A sample of `python bench/draft_answers.py`."""
    with drafted_answers.eager(by_model=True):
        counts = compared(engine, np.random.default_rng(seed), 12)
    assert counts["accepted"] > 20


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["wrong", "right", "random"])
def test_absurd_guesses_change_nothing(engine: Engine, kind: str) -> None:
    drafted_answers.check_absurd(engine, kind, {story: engine.tokenize(story) for story in STORIES})


@pytest.mark.usefixtures("eager")
def test_a_shifted_context_is_computed_anew(engine: Engine) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=400, logit_bias=dict.fromkeys(engine._loaded.tokenizer.eog_ids, float("-inf"))
    )
    plain = engine.generate(STORIES[0], params, on_overflow="shift", draft="off")
    shifted = engine.generate(STORIES[0], params, on_overflow="shift")
    assert shifted.tokens == plain.tokens
    assert shifted.usage.shifted_tokens > 0


@pytest.mark.usefixtures("eager")
def test_off_and_lookup_never_ask_the_model(engine: Engine) -> None:
    with patch.object(DraftModel, "_compute", side_effect=AssertionError("asked")):
        for draft in ("off", "lookup"):
            assert engine.generate(STORIES[1], GREEDY, draft=draft).usage.completion_tokens == 60


@pytest.mark.usefixtures("eager")
def test_a_draft_model_that_fails_is_left_out(deeper: str, caplog: pytest.LogCaptureFixture) -> None:
    with Engine(deeper, draft="model", draft_model=demo.path(), num_ctx=256, threads=1) as engine:
        expected = engine.generate(STORIES[2], GREEDY, draft="off").tokens
        with patch.object(DraftModel, "_compute", side_effect=RuntimeError("told to")) as asked:
            assert engine.generate(STORIES[2], GREEDY, cache=False).tokens == expected
        assert asked.call_count == 1
        assert "the draft model failed, and guesses no more: told to" in caplog.text


def test_a_model_of_another_vocabulary_is_refused(deeper: str, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1, seed=4).path
    with pytest.raises(
        ConfigError,
        match=r"needs the vocabulary of the model: tiny.gguf has \d+ tokens, and deeper.gguf has \d+; choose a smaller",
    ):
        Engine(deeper, draft_model=other, threads=1)


def test_a_head_of_another_vocabulary_is_refused(deeper: str, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "tiny.gguf", metadata={"general.architecture": "eagle3"}).path
    refused = pytest.raises(ConfigError, match=r"tiny.gguf has .*; choose the one that was made for this model")
    with GGUFFile(other) as head, GGUFFile(deeper) as model, refused:
        refuse_other_vocabulary(head, model)


def test_what_is_no_draft_model_is_refused(deeper: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Engine(deeper, draft_model="/nowhere/at-all.gguf")
    with pytest.raises(ConfigError, match="draft_model is the path of a GGUF file, or a model's name, got 3"):
        Engine(deeper, draft_model=3)  # type: ignore[arg-type]
    link = tmp_path / "link.gguf"
    link.symlink_to(deeper)
    for own in (deeper, str(link)):
        with pytest.raises(ConfigError, match="draft_model is the file of the model itself"):
            Engine(deeper, draft_model=own)
    with pytest.raises(ConfigError, match="draft is model, which needs a draft_model"):
        Engine(deeper, draft="model")
    with Engine(deeper, threads=1) as engine, pytest.raises(ConfigError, match="loaded without a draft_model"):
        engine.generate("One", draft="model")


def test_its_memory_is_in_the_report(deeper: str) -> None:
    with Engine(deeper, threads=1, num_ctx=256) as alone, Engine(demo.path(), threads=1, num_ctx=256) as demo_alone:
        (without,), (small,) = alone.memory.devices, demo_alone.memory.devices
    with Engine(deeper, draft_model=demo.path(), threads=1, num_ctx=256) as engine:
        (both,) = engine.memory.devices
        assert both.cache == without.cache + small.cache
        assert both.mapped == without.mapped + small.mapped
        assert engine.memory.layers["draft model"] == small.mapped


def test_its_memory_is_planned(deeper: str) -> None:
    options: dict[str, Any] = {"num_ctx": 256, "threads": 1}
    (planned,) = Engine.plan_memory(deeper, draft_model=demo.path(), **options).devices
    with Engine(deeper, draft_model=demo.path(), **options) as engine:
        (taken,) = engine.memory.devices
    assert (planned.mapped, planned.cache) == (taken.mapped, taken.cache)


def test_a_draft_model_of_a_server_is_for_models_of_its_vocabulary(deeper: str, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1, seed=4).path
    assert can_draft("demo", deeper)
    assert not can_draft("demo", other)
    assert not can_draft(deeper, deeper), "a model guesses nothing for itself"
