"""AnswerCount: how many answers are made, with which parameters, and which are returned."""

from __future__ import annotations

from typing import Any

import pytest

from ollama_engine import Completion, SamplingParams, TokenLogprobs, Usage
from ollama_engine.errors import ConfigError
from ollama_engine.runner.request.answer_count import AnswerCount

DRAWN = SamplingParams(temperature=1)
ABOUT_PROMPT = (None, TokenLogprobs(5, -0.5, []))


def completion(text: str, cumulative: float, n: int = 2, about_prompt: Any = None) -> Completion:
    logprobs = tuple(TokenLogprobs(1, cumulative / n, []) for _ in range(n))
    usage = Usage(3, n, 0, 0.0, 0.0, 0.0)
    return Completion(text, (1,) * n, "stop", usage, logprobs, about_prompt, cumulative)


@pytest.mark.parametrize(
    ("n", "best_of", "returned", "made"),
    [(None, None, 1, 1), (3, None, 3, 3), (None, 4, 1, 4), (2, 5, 2, 5), (2, 2, 2, 2), (None, 1, 1, 1)],
)
def test_counts(n: int | None, best_of: int | None, returned: int, made: int) -> None:
    assert AnswerCount.of(n, best_of, DRAWN) == AnswerCount(returned, made)


@pytest.mark.parametrize(
    ("n", "best_of", "params", "told"),
    [
        (0, None, DRAWN, "n is a whole number from 1"),
        (1.5, None, DRAWN, "n is a whole number from 1"),
        (None, 0, DRAWN, "best_of is a whole number from 1"),
        (3, 2, DRAWN, "best_of is at least n, got 2 and n=3"),
        (1, 2, SamplingParams(temperature=0), "best_of is 2, but all candidates are the same at temperature"),
    ],
)
def test_what_is_refused(n: Any, best_of: Any, params: SamplingParams, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        AnswerCount.of(n, best_of, params)


def test_each_candidate_has_a_seed_and_log_probabilities_to_compare() -> None:
    params = SamplingParams(seed=2**64 - 1, prompt_logprobs=2)
    made = list(AnswerCount(1, 3).variants(params))
    assert [each.seed for each in made] == [2**64 - 1, 0, 1]
    assert [each.logprobs for each in made] == [0, 0, 0]
    assert [each.prompt_logprobs for each in made] == [2, None, None]
    assert [each.logprobs for each in AnswerCount(3, 3).variants(params)] == [None] * 3, "nothing is compared"
    assert [each.logprobs for each in AnswerCount(1, 2).variants(SamplingParams(logprobs=3))] == [3, 3]
    assert [each.seed for each in AnswerCount(2, 2).variants(DRAWN)] == [None, None]


def test_the_best_come_first_and_count_what_was_discarded() -> None:
    first = [completion("a", -3, about_prompt=ABOUT_PROMPT), completion("b", -1, 4), completion("c", -9, 5)]
    second = [completion("d", -2), completion("e", -2), completion("f", -1)]
    found = AnswerCount(2, 3).chosen([*first, *second], DRAWN)
    assert [each.text for each in found] == ["b", "a", "f", "d"]
    assert [each.logprobs for each in found] == [None] * 4
    assert [each.cumulative_logprob for each in found] == [-1, -3, -1, -2]
    assert [each.usage.discarded_tokens for each in found] == [5, 0, 2, 0]
    assert [each.prompt_logprobs for each in found] == [ABOUT_PROMPT, ABOUT_PROMPT, None, None]
    asked = AnswerCount(1, 3).chosen(first, SamplingParams(logprobs=0))
    assert [(each.text, each.logprobs) for each in asked] == [("b", first[1].logprobs)]


def test_all_are_returned_as_they_came_where_none_is_discarded() -> None:
    made = [completion("a", -3, about_prompt=ABOUT_PROMPT), completion("b", -1)]
    found = AnswerCount(2, 2).chosen(made, DRAWN)
    assert [each.text for each in found] == ["a", "b"]
    assert [each.prompt_logprobs for each in found] == [ABOUT_PROMPT] * 2
