"""Speculative decoding by lookup: answers are those without it, and repeating texts take fewer steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Choice, Completion, Engine, Media, SamplingParams, Text, demo
from ollama_engine.errors import ConfigError
from ollama_engine.runner.core import speculation
from ollama_engine.runner.core.speculation import Speculation
from ollama_engine.runner.schedule import draft_lengths
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.draft_budget import DraftBudget
from ollama_engine.runner.speculative import lookup
from tests.models import families
from tests.multimodal.pictures import FILES
from tests.support import drafted_answers
from tests.support.engine_thread import held
from tests.support.near import assert_same_answer
from tests.support.suite import scaled
from tests.support.tiny import write_tiny_llama
from tests.support.workers import running_worker

N_VOCAB = 320
PHRASE = [41, 42, 43, 44, 45, 46, 47]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_llama(path, n_layer=2, seed=4)
    with Engine(path, num_ctx=256, parallel=4, threads=1, verify=True, draft="lookup") as made:
        yield made


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every guess is verified, whatever it costs: on a tiny model none pays."""
    monkeypatch.setattr(draft_lengths, "WORTH", 0.0)
    monkeypatch.setattr(DraftBudget, "most", lambda *_: 64)
    monkeypatch.setattr(speculation, "LONGEST_REST", 0)
    monkeypatch.setattr(lookup, "LEAST_CHANCE", 0.0)


def repeating(rng: np.random.Generator, n: int) -> list[int]:
    """A prompt of phrases that come again, so that there is something to look up."""
    phrases = [rng.integers(1, 300, rng.integers(2, 9)).tolist() for _ in range(3)]
    return [int(token) for _ in range(n) for token in phrases[rng.integers(3)]]


def params_of(rng: np.random.Generator) -> SamplingParams:
    fields: list[dict[str, Any]] = [
        {"temperature": 0}, {"temperature": 0, "repeat_penalty": 1.3}, {"seed": 3}, {"seed": 4, "logprobs": 2},
        {"temperature": 0, "dry_multiplier": 0.8}, {"seed": 5, "mirostat": 2}, {"temperature": 0, "stop": ["a"]},
    ]  # fmt: skip
    return SamplingParams(**fields[rng.integers(len(fields))], max_tokens=int(rng.integers(1, 60)))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", range(scaled(100, quick=6)))
def test_answers_in_any_company_are_those_without_drafts(engine: Engine, seed: int) -> None:
    rng = np.random.default_rng(seed)
    asked = [(repeating(rng, int(rng.integers(2, 12))), params_of(rng)) for _ in range(scaled(10, quick=6))]
    choice = Choice(["a b a b", "a b c"])
    formats: list[dict[str, Any]] = [{"format": choice} if rng.random() < 0.2 else {} for _ in asked]
    before = engine.metrics
    plain = [engine.submit(*each, draft="off", **form) for each, form in zip(asked, formats, strict=True)]
    expected = [request.result() for request in plain]
    assert engine.metrics.drafted_tokens == before.drafted_tokens
    drafted = [engine.submit(*each, **form) for each, form in zip(asked, formats, strict=True)]
    for request, answer in zip(drafted, expected, strict=True):
        found = request.result()
        assert_same_answer(found, answer)
        assert 0 <= found.usage.accepted_tokens <= found.usage.drafted_tokens
    assert engine.metrics.drafted_tokens > before.drafted_tokens


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(seed=3, logprobs=2)])
def test_an_answer_drafts_while_prompts_are_read(engine: Engine, params: SamplingParams) -> None:
    """Prompts come that take several steps beside it: more tokens than a batch has, 64 in each of the other steps."""
    params = replace(params, max_tokens=100, logit_bias={318: float("-inf"), 319: float("-inf")})
    rng = np.random.default_rng(0)
    expected = engine.generate([*PHRASE, *PHRASE, *PHRASE], params, draft="off")
    drafted = 0

    def note(self: Speculation, step: Step, *more: Any) -> None:
        nonlocal drafted
        drafted += step.drafted
        noted(self, step, *more)

    noted = Speculation._note_beside
    with patch.object(Speculation, "_note_beside", note):
        for _ in range(3):
            with held(engine):
                answer = engine.submit([*PHRASE, *PHRASE, *PHRASE], params, cache_salt="beside")
                prompts = [engine.submit(rng.integers(1, 300, 240).tolist(), max_tokens=1) for _ in range(3)]
            found = answer.result()
            assert_same_answer(found, expected)
            assert [len(prompt.result().tokens) for prompt in prompts] == [1, 1, 1]
    assert drafted >= 2, "the answer is known from the first round"


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", [3, None])
def test_n_answers_sessions_and_forks_are_those_without_drafts(engine: Engine, seed: int | None) -> None:
    """Drawn with a seed, or greedy; a session and its fork go on behind tokens that were guesses."""
    bias = {318: float("-inf"), 319: float("-inf")}
    params = SamplingParams(temperature=0.7 if seed else 0, seed=seed, max_tokens=40, logit_bias=bias, logprobs=1)
    found = {}
    for draft in ("off", "lookup"):
        answers = list(engine.generate([*PHRASE, *PHRASE, *PHRASE], params, n=3, draft=draft))
        with engine.session() as session:
            session.append("a b c a b c a b c a b")
            answers.append(session.generate(params, draft=draft))
            with session.fork() as fork:
                fork.append("a b c a b")
                answers.append(fork.generate(params, draft=draft))
            answers.append(session.generate(params, draft=draft))
        found[draft] = answers
    for answer, expected in zip(found["lookup"], found["off"], strict=True):
        assert_same_answer(answer, expected)
    assert sum(each.usage.drafted_tokens for each in answers) > 5


@pytest.mark.usefixtures("eager")
def test_preempted_answers_are_those_without_drafts(engine: Engine) -> None:
    params = SamplingParams(
        temperature=0, max_tokens=90, logprobs=1, logit_bias={318: float("-inf"), 319: float("-inf")}
    )
    drafted_answers.check_preempted(engine, [[token, *PHRASE * 22] for token in range(4)], params)


@pytest.mark.usefixtures("eager")
def test_answers_behind_images_are_those_without_drafts(tmp_path: Path) -> None:
    model = families.converted(families.case("gemma4-vision-bf16"), tmp_path)
    prompt: list[Text | Media] = [Text("a b c a b c a b"), Media(FILES["png"]), Text("a b c a b c a b")]
    params = SamplingParams(temperature=0, max_tokens=40, logprobs=2)
    with Engine(model, num_ctx=512, threads=1, gpu_layers=0, draft="lookup", prefix_store=False) as engine:
        expected = engine.generate(prompt, params, draft="off", cache=False)
        found = [engine.generate(prompt, params) for _ in range(2)]
    for answer in found:
        assert_same_answer(answer, expected)
    assert found[1].usage.accepted_tokens > 20, "the answer came before"


@pytest.mark.usefixtures("eager")
def test_workers_draft_where_it_is_asked_for(tmp_path: Path) -> None:
    """They round several rows otherwise than one: so not by themselves, and log-probabilities differ by a rounding."""
    path = tmp_path / "tiny.gguf"
    write_tiny_llama(path, n_layer=2, seed=4)
    bias = {318: float("-inf"), 319: float("-inf")}
    params = SamplingParams(temperature=0, max_tokens=60, logprobs=1, logit_bias=bias)
    found = {}
    with running_worker(tmp_path) as worker:
        assert drafts_by_default({"devices": [worker.address], "num_ctx": 512}) == "False"
        for draft in ("off", "lookup"):
            with Engine(path, num_ctx=256, threads=1, devices=[worker.address], draft=draft) as engine:
                for _ in range(2):  # the answer came before
                    found[draft] = engine.generate(PHRASE * 3, params)
    assert found["lookup"].usage.accepted_tokens > 20
    assert found["lookup"].tokens == found["off"].tokens
    assert logprobs(found["lookup"]) == pytest.approx(logprobs(found["off"]), abs=1e-3)


def logprobs(answer: Completion) -> list[float]:
    return [each.logprob for each in answer.logprobs or ()]


@pytest.mark.usefixtures("eager")
def test_an_answer_that_came_before_takes_few_steps(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=100, logit_bias={318: float("-inf"), 319: float("-inf")})
    prompt = [5, 77, 200, 31, 8, 19, 4]
    first = engine.generate(prompt, params, cache_salt="once")
    steps = engine.metrics.steps
    again = engine.generate(prompt, params, cache_salt="once")
    assert again.tokens == first.tokens
    assert engine.metrics.steps - steps < 30
    assert again.usage.accepted_tokens > 70
    assert engine.generate(prompt, params, cache_salt="other").usage.accepted_tokens < 70, "another namespace"


def test_off_drafts_nothing(engine: Engine) -> None:
    found = engine.generate([*PHRASE, *PHRASE, *PHRASE], SamplingParams(temperature=0, max_tokens=20), draft="off")
    assert found.usage.drafted_tokens == 0


@pytest.mark.parametrize("given", ["on", 3, True, "Lookup"])
def test_other_ways_to_draft_are_refused(engine: Engine, given: Any) -> None:
    with pytest.raises(ConfigError, match="draft is one of auto, lookup, model, mtp, off, or None, got"):
        engine.generate([1, 2], draft=given)


DEFAULT = """
import sys
from ollama_engine import Engine, SamplingParams
with Engine(sys.argv[1], threads=1, **eval(sys.argv[2])) as engine:
    params = SamplingParams(temperature=0, max_tokens=100)
    for _ in range(3):
        answer = engine.generate("One day, a cat", params)
    print(answer.usage.drafted_tokens > 0)
"""


@pytest.mark.parametrize(("options", "drafts"), [({}, True), ({"draft": "off"}, False)], ids=["default", "off"])
def test_where_the_cpu_computes_all_drafts_are_the_default(options: dict[str, Any], drafts: bool) -> None:
    """In a process of its own, which has the engine's default and not the tests'. An answer that came is known."""
    assert drafts_by_default(options) == str(drafts)


def drafts_by_default(options: dict[str, Any]) -> str:
    """Whether an engine of a process of its own, where no fixture says what is the default, drafts."""
    command = [sys.executable, "-c", DEFAULT, str(demo.path()), repr(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip()
