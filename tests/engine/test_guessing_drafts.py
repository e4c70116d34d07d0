"""Drafts that are computed: by a model's own head, an EAGLE-3 head and an assistant. Answers are those without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.runner.speculative.assistant import AssistantSource
from ollama_engine.runner.speculative.eagle3 import Eagle3Source
from ollama_engine.runner.speculative.guessing import GuessSource
from ollama_engine.runner.speculative.next_tokens import NextTokenSource
from tests.engine import test_assistant_drafts, test_eagle_drafts, test_next_token_drafts
from tests.engine.test_eagle_drafts import PARAMS, TEXTS, opened
from tests.models import assistants, families
from tests.models.heads import agreeing, converted
from tests.support import drafted_answers
from tests.support.drafted_answers import check_absurd, check_preempted, compared
from tests.support.suite import scaled, slow_except


class Guessing(NamedTuple):
    """What guesses: options of an engine, the class of its source, and what the log calls it."""

    path: Path
    options: dict[str, Any]
    source: type[GuessSource]
    name: str


def own_head(case: str, folder: Path) -> Guessing:
    family = families.case(case)
    path = converted(family, folder, agreeing(family))
    return Guessing(path, {"draft": "mtp"}, NextTokenSource, "the model's head")


def eagle_head(case: str, folder: Path) -> Guessing:
    path, head = test_eagle_drafts.made_pair(families.case(case), folder)
    return Guessing(path, {"draft": "model", "draft_model": str(head)}, Eagle3Source, "the EAGLE-3 head")


def assistant(case: str, folder: Path) -> Guessing:
    path, small = test_assistant_drafts.made_pair(
        next(each for each in assistants.cases() if each.name == case), folder
    )
    return Guessing(path, {"draft": "model", "draft_model": str(small)}, AssistantSource, "the assistant")


MAKERS = {
    **{f"mtp-{case}": (own_head, case) for case in test_next_token_drafts.CASES},
    **{f"eagle3-{case}": (eagle_head, case) for case in test_eagle_drafts.TARGETS},
    **{case: (assistant, case) for case in test_assistant_drafts.CASES},
}
QUICK = ("mtp-glm4moe", "mtp-qwen35", "eagle3-llama", *test_assistant_drafts.CASES)


@pytest.fixture(scope="module", params=slow_except(MAKERS, *QUICK))
def guessing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Guessing:
    """A model whose next token follows from the last one, and what knows it."""
    maker, case = MAKERS[request.param]
    return maker(case, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def engine(guessing: Guessing) -> Iterator[Engine]:
    with ExitStack() as undo:
        undo.enter_context(drafted_answers.eager(by_model=True))
        yield undo.enter_context(opened(guessing.path, parallel=4, **guessing.options))


def test_one_that_agrees_is_mostly_right(engine: Engine) -> None:
    prompt = list(range(20, 60))
    plain = engine.generate(prompt, PARAMS, draft="off", cache=False)
    found = engine.generate(prompt, PARAMS)
    assert found.tokens == plain.tokens
    assert found.usage.drafted_tokens > 30
    assert found.usage.accepted_tokens > 0.6 * found.usage.drafted_tokens


def test_answers_in_any_company_are_those_without_drafts(engine: Engine) -> None:
    """How many guesses a company has depends on which answers meet: all are counted together."""
    n = scaled(20, quick=2)
    drafted = sum(compared(engine, np.random.default_rng(seed), 12)["drafted"] for seed in range(n))
    assert drafted > 20 * n


@pytest.mark.parametrize("kind", ["wrong", "right", "random"])
def test_absurd_guesses_change_nothing(engine: Engine, kind: str) -> None:
    check_absurd(engine, kind, {text: engine.tokenize(text) for text in TEXTS})


def test_a_shifted_context_begins_anew(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=400, logit_bias=families.BANNED)
    plain = engine.generate(TEXTS[0], params, on_overflow="shift", draft="off")
    shifted = engine.generate(TEXTS[0], params, on_overflow="shift")
    assert shifted.tokens == plain.tokens
    assert shifted.usage.shifted_tokens > 0
    assert shifted.usage.drafted_tokens > 100


def test_preempted_answers_are_those_without_drafts(engine: Engine) -> None:
    params = replace(PARAMS, max_tokens=90, logprobs=1)
    check_preempted(engine, [[token, *range(20, 175)] for token in range(4)], params)


@pytest.mark.parametrize("method", ["_compute", "cut"])
def test_one_that_fails_is_left_out(
    engine: Engine, guessing: Guessing, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    if method == "cut" and guessing.source is AssistantSource:
        pytest.skip("it has no cache to cut")
    expected = engine.generate(TEXTS[2], PARAMS, draft="off").tokens
    with patch.object(guessing.source, method, side_effect=RuntimeError("told to")) as asked:
        assert engine.generate(TEXTS[2], PARAMS, cache=False).tokens == expected
    assert asked.call_count == 1
    assert f"{guessing.name} failed, and guesses no more: told to" in caplog.text
