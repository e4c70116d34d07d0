"""Scores and log-probabilities of prompts are the log-softmax of the logits that transformers computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ollama_engine import SamplingParams
from tests.models import golden
from tests.models.cases import CASES, Case
from tests.support.suite import slow_except


@pytest.mark.parametrize("name", slow_except([case.name for case in CASES if case.greedy], "gqa", "biases"))
def test_they_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case: Case = next(case for case in CASES if case.name == name)
    expected = golden.load(case)
    rows = expected.logits.astype(np.float64)
    allowed = 2 * case.tolerance * rows.std(axis=1)
    logprobs = rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)
    prompt = case.prompt
    with case.engine(case.write(tmp_path).path) as engine:
        of_prompt = engine.generate(prompt, SamplingParams(max_tokens=0, prompt_logprobs=3)).prompt_logprobs
        assert of_prompt is not None
        for at, row, near in zip(expected.rows.tolist(), logprobs, allowed, strict=True):
            best = row.argsort()[::-1][:9]
            found = engine.score(prompt[: at + 1], [[int(token)] for token in best])
            assert [score.logprob for score in found] == pytest.approx(row[best].tolist(), abs=near)
            assert [score.is_greedy for score in found] == [True] + [False] * 8
            if at + 1 < len(prompt):
                entry = of_prompt[at + 1]
                assert entry is not None
                assert entry.logprob == pytest.approx(row[prompt[at + 1]], abs=near)
                assert [logprob for _, logprob in entry.top] == pytest.approx(row[best[:3]].tolist(), abs=near)
