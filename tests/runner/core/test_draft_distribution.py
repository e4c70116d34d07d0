"""Above temperature 0, tokens behind verified guesses come as often as the model's probabilities say, by chi-square.

Equality with seeds shows the same only as long as guesses use no random numbers of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.runner.core import speculation, submission
from ollama_engine.runner.core.new_requests import new_generation
from ollama_engine.runner.schedule.steering import Draft
from tests.support.suite import scaled
from tests.support.tiny import write_tiny_llama

PROMPT = [5, 77, 200, 31, 8]
N_LIKELY = 4
FAR = 37.7
"""Chi-square with 15 degrees of freedom lies above this once in a thousand times; seeds are fixed."""


class GuessesTheLikeliest:
    """A drafter that guesses the likeliest token behind each first token."""

    source = None

    def __init__(self, likeliest: dict[int, int]) -> None:
        self.likeliest = likeliest

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        return Draft([self.likeliest[tokens[-1]]][:most] if len(tokens) == len(PROMPT) + 1 else [])

    def end(self, answer: Sequence[int]) -> None:
        """Nothing is kept."""


def likely(engine: Engine, prompt: list[int]) -> dict[int, float]:
    """The tokens that may follow, and how likely they are among each other."""
    found = engine.generate(prompt, SamplingParams(temperature=0, max_tokens=1, logprobs=N_LIKELY))
    assert found.logprobs is not None
    chances = {token: float(np.exp(logprob)) for token, logprob in found.logprobs[0].top}
    return {token: chance / sum(chances.values()) for token, chance in chances.items()}


def test_tokens_come_as_often_with_guesses_as_the_model_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation, "LONGEST_REST", 0)  # how long a drafter is left alone depends on times
    path = tmp_path / "tiny.gguf"
    write_tiny_llama(path, n_layer=2, seed=4)
    n = scaled(8000, quick=2000)
    with Engine(path, num_ctx=32, parallel=8, threads=1, draft="off", max_queue=n) as engine:
        first = likely(engine, PROMPT)
        second = {token: likely(engine, [*PROMPT, token]) for token in first}
        drafter = GuessesTheLikeliest({token: max(after, key=after.__getitem__) for token, after in second.items()})

        def drafted(*args: Any, **keywords: Any) -> Any:
            return new_generation(*args, **{**keywords, "drafter": drafter})

        with patch.object(submission, "new_generation", drafted):
            ways = [
                SamplingParams(temperature=1, top_k=N_LIKELY, top_p=1, seed=seed, max_tokens=3) for seed in range(n)
            ]
            requests = [engine.submit(PROMPT, params) for params in ways]
        answers = [request.result() for request in requests]
    counts = Counter(answer.tokens[:2] for answer in answers)
    expected = {(a, b): n * first[a] * chance for a, after in second.items() for b, chance in after.items()}
    assert set(counts) <= set(expected)
    assert min(expected.values()) > 5
    assert sum((counts[pair] - often) ** 2 / often for pair, often in expected.items()) < FAR
    right = sum(answer.usage.accepted_tokens for answer in answers)
    assert right == sum(answer.tokens[1] == drafter.likeliest[answer.tokens[0]] for answer in answers)
    assert n / 5 < right < n
