"""Every sampler in requests: the same answer alone and in company, in sessions; breakers of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.sample import Sampler

PROMPT = "Once upon a time"
PLAIN = SamplingParams(temperature=1, top_k=0, top_p=1, seed=5, max_tokens=24)
PARAMS = {
    "typical": replace(PLAIN, typical_p=0.8),
    "top-n-sigma": replace(PLAIN, top_n_sigma=2),
    "XTC": replace(PLAIN, xtc_probability=0.5, xtc_threshold=0.05, min_p=0.02),
    "DRY": replace(PLAIN, dry_multiplier=2, dry_allowed_length=1, top_k=40),
    "dynatemp": replace(PLAIN, dynatemp_range=0.8, top_k=40),
    "mirostat 1": replace(PLAIN, mirostat=1, mirostat_tau=3),
    "mirostat 2": replace(PLAIN, mirostat=2, mirostat_tau=3),
    "adaptive-p": replace(PLAIN, adaptive_target=0.3, min_p=0.02),
    "another order": replace(PLAIN, temperature=1.3, min_p=0.1, samplers="temperature;min_p;penalties"),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    # f32, because a draw may fall to either side of what f16 rounds.
    with Engine(demo.path(), num_ctx=128, parallel=len(PARAMS), threads=1, kv_cache_type="f32") as made:
        yield made


def test_answers_are_the_same_alone_and_in_company(engine: Engine) -> None:
    alone = {name: engine.generate(PROMPT, params).tokens for name, params in PARAMS.items()}
    requests = {name: engine.submit(PROMPT, params) for name, params in PARAMS.items()}
    assert {name: request.result(60).tokens for name, request in requests.items()} == alone
    assert len(set(alone.values())) > len(alone) // 2, "samplers do something"


def test_answers_of_one_call_are_those_of_their_seeds(engine: Engine) -> None:
    params = PARAMS["mirostat 2"]
    found = engine.generate(PROMPT, params, n=3)
    assert [each.tokens for each in found] == [
        engine.generate(PROMPT, replace(params, seed=5 + i)).tokens for i in range(3)
    ]


@pytest.mark.parametrize("name", ["DRY", "mirostat 2", "adaptive-p"])
def test_a_session_answers_as_its_text_alone(engine: Engine, name: str) -> None:
    with engine.session() as session:
        session.append(PROMPT)
        first = session.generate(PARAMS[name])
        second = session.generate(PARAMS[name])
    ids = [*engine.tokenize(PROMPT), *first.tokens]
    assert first.tokens == engine.generate(PROMPT, PARAMS[name]).tokens
    assert second.tokens == engine.generate(ids, PARAMS[name]).tokens


def test_dry_forbids_what_the_model_repeats(engine: Engine) -> None:
    """A prompt that has said the model's own answer once makes it say it again; DRY does not let it."""
    plain = SamplingParams(temperature=0, max_tokens=12)
    once = engine.generate(PROMPT, plain)
    ids = [*engine.tokenize(PROMPT), *once.tokens, *engine.tokenize(PROMPT, add_special=False)]
    strong = replace(plain, dry_multiplier=1e6, dry_allowed_length=1, dry_sequence_breakers=())
    found = engine.generate(ids, replace(strong, max_tokens=1)).tokens
    assert found[0] != once.tokens[0]


def test_breakers_are_texts_of_the_vocabulary(engine: Engine) -> None:
    """A breaker at the end of the prompt leaves nothing to repeat."""
    params = SamplingParams(temperature=0, max_tokens=1, dry_multiplier=1e6, dry_allowed_length=1)
    prompt = "Tim said: yes. Tim said: yes. Tim said:"
    (free,) = engine.generate(prompt, replace(params, dry_multiplier=0)).tokens
    (broken,) = engine.generate(prompt, params).tokens
    (bound,) = engine.generate(prompt, replace(params, dry_sequence_breakers=())).tokens
    assert broken == free
    repeated = engine.tokenize(prompt)[len(engine.tokenize("Tim said:"))]
    assert bound != repeated


def test_the_sampler_of_a_request_has_its_breakers_once(engine: Engine) -> None:
    made: list[Sampler] = []
    for _ in range(2):
        request = engine.submit(PROMPT, PARAMS["DRY"])
        assert request.generation is not None
        made.append(request.generation.sampler)
        request.result(60)
    assert made[0].breakers is not None
    assert made[0].breakers is made[1].breakers
