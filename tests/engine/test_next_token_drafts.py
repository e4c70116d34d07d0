"""Drafts of a model's own head: its numbers, answers with it beside those without, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ConfigError
from ollama_engine.input import FloatArray
from ollama_engine.runner.load.head_parts import without_head
from ollama_engine.runner.speculative.next_tokens import HeadDrafter
from tests.models import families
from tests.models.heads import agreeing, converted, with_head
from tests.support import drafted_answers
from tests.support.mmproj import changed
from tests.support.suite import slow_except

PARAMS = SamplingParams(temperature=0, max_tokens=60, logit_bias=families.BANNED)
CASES = ("glm4moe", "deepseek-v3-plain", "glm-4.7-flash", "qwen35", "qwen35moe", "qwen3next")
ATTEND = CASES[:3]
TEXTS = ("One day, a little cat", "Tom and Ann went to", "The big dog was sad because")


def opened(path: Path, **options: Any) -> Engine:
    return Engine(path, num_ctx=256, threads=1, gpu_layers=0, kv_cache_type="f32", verify=True, **options)


@pytest.fixture(scope="module", params=slow_except(CASES, "glm4moe", "qwen35"))
def agreed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = families.case(request.param)
    return converted(case, tmp_path_factory.mktemp(request.param), agreeing(case))


@pytest.fixture
def engine(agreed: Path) -> Iterator[Engine]:
    with opened(agreed, draft="mtp", parallel=4) as engine:
        yield engine


def test_hidden_states_come_once_and_in_order(engine: Engine) -> None:
    """Those of wrong guesses do not come at all."""
    given: list[tuple[int, int]] = []

    def noting(drafter: HeadDrafter, begin: int, rows: FloatArray, slot: int) -> None:
        given.append((begin, begin + len(rows)))
        read(drafter, begin, rows, slot)

    read = HeadDrafter.read_hidden
    prompt = engine.tokenize(TEXTS[0])
    with patch.object(HeadDrafter, "read_hidden", noting), drafted_answers.eager(by_model=True):
        answer = engine.generate(prompt, SamplingParams(seed=1, temperature=100.0, top_k=0, top_p=1.0, max_tokens=60))
    assert answer.usage.accepted_tokens < answer.usage.drafted_tokens
    assert given[0] == (len(prompt) - 1, len(prompt))
    assert all(begin == end for (begin, _), (_, end) in zip(given[1:], given, strict=False))


def test_hidden_states_that_nobody_reads_are_not_kept_without_end(engine: Engine) -> None:
    """Here its guesses never pay: it is asked now and then."""
    with patch("ollama_engine.runner.speculative.next_tokens.MOST_WAITING", 8):
        plain = engine.generate(TEXTS[1], PARAMS, draft="off")
        with patch("ollama_engine.runner.speculative.guessing.best_depth", lambda *prices: 0):
            assert engine.generate(TEXTS[1], PARAMS).tokens == plain.tokens


def test_hidden_states_that_cannot_be_taken_are_a_gap(engine: Engine) -> None:
    def failing(drafter: HeadDrafter, begin: int, rows: FloatArray, slot: int) -> None:
        if begin % 9 == 0:
            raise MemoryError("told to")
        read(drafter, begin, rows, slot)

    read = HeadDrafter.read_hidden
    prompt = list(range(20, 60))
    plain = engine.generate(prompt, PARAMS, draft="off", cache=False)
    with patch.object(HeadDrafter, "read_hidden", failing), drafted_answers.eager(by_model=True):
        found = engine.generate(prompt, PARAMS)
    assert found.tokens == plain.tokens
    assert found.usage.accepted_tokens > 0


def test_its_memory_is_in_the_report_and_planned(agreed: Path) -> None:
    options: dict[str, Any] = {"num_ctx": 256, "threads": 1, "gpu_layers": 0}
    with Engine(agreed, draft="off", **options) as engine:
        (without,), serving = engine.memory.devices, sum(engine.memory.serving.values())
    with Engine(agreed, draft="mtp", **options) as engine:
        (taken,) = engine.memory.devices
        assert sum(engine.memory.serving.values()) > serving
    (planned,) = Engine.plan_memory(agreed, draft="mtp", **options).devices
    (planned_without,) = Engine.plan_memory(agreed, draft="off", **options).devices
    assert taken.cache > without.cache
    assert taken.mapped > without.mapped
    assert (planned.cache, planned.mapped) == (taken.cache, taken.mapped)
    assert planned.work - planned_without.work >= taken.work - without.work > 0, "masks"


def test_its_weights_are_not_among_the_model_s(engine: Engine) -> None:
    """Whether answers are the same with drafts depends on the model's products alone."""
    weights = engine._loaded.weights
    of_head = set(weights) - set(without_head(weights))
    (block,) = {name[: name.index("nextn.")] for name in weights if ".nextn." in name}
    assert of_head == {name for name in weights if name.startswith(block)}


def test_what_has_no_head_is_refused(agreed: Path, tmp_path: Path) -> None:
    plain = families.converted(families.case("glm4moe"), tmp_path)
    with pytest.raises(ConfigError, match="draft is mtp, and the file has no head that predicts further tokens"):
        Engine(plain, draft="mtp", threads=1)
    published = changed(plain, tmp_path / "published.gguf", {}, {"mtp.fc.weight": np.zeros(32, np.float32)})
    with pytest.raises(ConfigError, match=r"the file has its head under the checkpoint's names \(mtp\.\)"):
        Engine(published, draft="mtp", threads=1)
    uncounted = changed(plain, tmp_path / "one.gguf", {}, {"blk.9.nextn.eh_proj.weight": np.zeros(32, np.float32)})
    with pytest.raises(ConfigError, match="the file has a head that its nextn_predict_layers does not count"):
        Engine(uncounted, draft="mtp", threads=1)
    two = changed(agreed, tmp_path / "two.gguf", {}, {"blk.9.nextn.eh_proj.weight": np.zeros(32, np.float32)})
    with pytest.raises(ConfigError, match="the file has 2 heads, of which none can be used"):
        Engine(two, draft="mtp", threads=1)
    with opened(plain) as engine, pytest.raises(ConfigError, match="draft is mtp, and the engine has no head"):
        engine.generate("One", draft="mtp")
    with opened(agreed, draft="lookup") as engine, pytest.raises(ConfigError, match="loaded for other drafts"):
        engine.generate("One", draft="mtp")


def test_a_head_of_a_kind_that_is_not_known_is_left_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = families.case("nemotron_h_moe")
    path = converted(case, tmp_path, with_head(case))
    with pytest.raises(ConfigError, match="the file's head is of no use: architecture nemotron_h_moe has none"):
        opened(path, draft="mtp")
    with opened(path) as engine:
        assert engine.generate("One", PARAMS).usage.completion_tokens == 60
    assert "which predicts further tokens, is left aside" in caplog.text
