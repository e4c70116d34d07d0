"""Whatever the schema and however hot the model: an answer that ends validates, and what cannot be kept is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ollama_engine import Completion, Engine, Request, SamplingParams, demo
from ollama_engine.errors import GrammarError
from tests.sample.constraints.schemas import schemas
from tests.support.suite import scaled

IN_FLIGHT = 16
PATIENCE = 600


def collected(n: int) -> list[dict[str, Any]]:
    """The same schemas each time."""
    found: list[dict[str, Any]] = []

    @settings(
        max_examples=n, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(schemas())
    def collect(schema: dict[str, Any]) -> None:
        found.append(schema)

    collect()
    return found


def valid(schema: dict[str, Any], value: object) -> None:
    jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).validate(value)  # fmt: skip


def check(engine: Engine, asked: list[dict[str, Any]], max_tokens: int) -> Counter[str]:
    """Ask for an answer in each format; how they ended."""
    seen: Counter[str] = Counter()
    waiting: list[tuple[dict[str, Any], Request]] = []

    def take() -> None:
        schema, request = waiting.pop(0)
        answer: Completion = request.result(PATIENCE)
        seen[answer.finish_reason] += 1
        if answer.finish_reason == "stop":
            assert answer.parsed == json.loads(answer.text)
            valid(schema, answer.parsed)

    for number, schema in enumerate(asked):
        params = SamplingParams(temperature=1.5, max_tokens=max_tokens, seed=number)
        try:
            waiting.append((schema, engine.submit("Once", params, format=schema)))
        except GrammarError as error:
            seen["refused" if error.pointer is not None else "refused without a place"] += 1
        if len(waiting) >= IN_FLIGHT:
            take()
    while waiting:
        take()
    return seen


@pytest.mark.timeout(300)  # 2,000 answers
def test_answers_of_the_demo_model() -> None:
    n = scaled(2_000, quick=60)
    with Engine(demo.path(), num_ctx=256, parallel=8, threads=1) as engine:
        seen = check(engine, collected(n), 120)
    assert seen["stop"] > n / 3
    assert seen["refused"] < n / 2
    assert not seen["refused without a place"]


@pytest.fixture
def smollm2(smollm2_path: Path) -> Iterator[Engine]:
    with Engine(smollm2_path, num_ctx=128, parallel=8, threads=1) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.timeout(180)  # 300 answers of a model of 135M
def test_answers_of_a_published_model(smollm2: Engine) -> None:
    n = scaled(300, quick=5)
    seen = check(smollm2, collected(n), 64)
    assert seen["stop"] > n / 5
