"""Every architecture with recurrent states: three answers at once, preempted, forked and restored from a file, have the
bits that each has alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Completion, Engine, SamplingParams
from tests.models import families
from tests.models.variants import prompt
from tests.support.near import assert_same_answer
from tests.support.suite import slow_except

N_CTX = 256
ARCHITECTURES = (
    "falcon-h1", "granitehybrid", "kimi-linear", "lfm2", "lfm2moe", "mamba2", "nemotron_h", "nemotron_h_moe",
    "olmo-hybrid", "qwen35", "qwen35moe", "qwen3next",
)  # fmt: skip


@pytest.fixture(scope="module", params=slow_except(ARCHITECTURES, "lfm2"))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(families.converted(families.case(request.param), tmp_path_factory.mktemp(request.param)))


def opened(path: str, **options: Any) -> Engine:
    settings = {"num_ctx": N_CTX, "threads": 1, "gpu_layers": 0, "kv_cache_type": "f32", "verify": True, **options}
    return Engine(path, **settings)


def greedy(n: int = 12) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, logit_bias=families.BANNED, logprobs=0)


def alone(path: str, ids: list[int], n: int = 12) -> Completion:
    with opened(path, parallel=1) as engine:
        return engine.generate(ids, greedy(n))


def test_three_preempted_answers_go_on_as_if_nothing_had_been(path: str) -> None:
    prompts = [prompt(100, seed=seed) for seed in range(3)]
    expected = [alone(path, ids, 100) for ids in prompts]
    with opened(path, parallel=3) as engine:
        held = engine.session()
        held.append(prompt(240, seed=9))  # too few cells are left for three answers
        held2 = engine.session()
        held2.append(prompt(220, seed=8))
        requests = [engine.submit(ids, greedy(100)) for ids in prompts]
        for request, answer in zip(requests, expected, strict=True):
            assert_same_answer(request.result(), answer)
        needs_cells = "mamba2" not in path  # which has no keys and values
        assert (engine.metrics.preemptions > 0) == needs_cells


def test_a_session_forks_rewinds_and_comes_back_from_a_file(path: str, tmp_path: Path) -> None:
    ids = prompt(60)
    with opened(path) as engine, engine.session() as session:
        session.append(ids)
        first = session.generate(greedy())
        assert_same_answer(first, alone(path, ids))
        after = [*ids, *first.tokens]
        fork = session.fork()
        answers = [one.generate(greedy()) for one in (session, fork)]
        for answer in answers:
            assert_same_answer(answer, alone(path, after))
        assert all(answer.usage.cached_tokens == len(after) - 1 for answer in answers)
        fork.rewind(len(fork) - 30)
        assert_same_answer(fork.generate(greedy()), alone(path, ids[:30]))
        session.save(tmp_path / "session")
        whole = list(session.tokens)
    with opened(path) as other, other.load_session(tmp_path / "session") as session:
        session.append(prompt(5, seed=3))
        answer = session.generate(greedy())
        assert_same_answer(answer, alone(path, [*whole, *prompt(5, seed=3)]))
        assert other.metrics.prompt_tokens <= 5 + 2, "the file's state is gone on from"
