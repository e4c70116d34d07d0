"""Answers with drafts beside the same answers without: random requests in one batch, and every guess is verified."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from ollama_engine import Choice, Completion, Engine, Request, SamplingParams
from ollama_engine.runner.core import speculation
from ollama_engine.runner.schedule import draft_lengths
from ollama_engine.runner.schedule.draft_budget import DraftBudget
from ollama_engine.runner.schedule.step_costs import StepPrices
from ollama_engine.runner.speculative import guessing, lookup
from ollama_engine.runner.speculative.guessing import DraftPart, Guess, GuessSource
from tests.support.engine_thread import held
from tests.support.near import assert_same_answer

__all__ = ["check_absurd", "check_preempted", "compared", "eager"]

WAYS: Sequence[dict[str, Any]] = (
    {"temperature": 0}, {"temperature": 0, "repeat_penalty": 1.3}, {"temperature": 0, "dry_multiplier": 0.8},
    {"temperature": 0, "stop": [".", "and"]}, {"temperature": 0, "logprobs": 2}, {"seed": 3, "temperature": 1.0},
    {"seed": 4, "logprobs": 2}, {"seed": 5, "mirostat": 2}, {"seed": 6, "temperature": 0.3},
    {"seed": 7, "top_k": 0, "top_p": 1.0, "min_p": 0.02}, {"seed": 9, "temperature": 1.5},
    {"seed": 8, "frequency_penalty": 0.7, "presence_penalty": 0.3},
)  # fmt: skip
FORMATS: Sequence[dict[str, Any]] = (
    {"format": Choice(["a b a b", "a b c"])}, {"format": "json"},
    {"format": {"type": "object", "properties": {"name": {"enum": ["Ann", "Tom"]}}, "required": ["name"]}},
)  # fmt: skip
PLAIN = 0.75
"""Part of the answers that has no format."""
PROMPTS = (
    "One day, a little cat",
    "Tom and Ann went to",
    "The big dog was sad because",
    "Once upon a time there was a",
)


@contextmanager
def eager(ahead: int = 5, *, by_model: bool = False) -> Iterator[None]:
    """Every guess is verified, whatever it costs, in any company; with `by_model` a draft model guesses `ahead` tokens.

    On a tiny model no guess pays.
    """
    with ExitStack() as undo:
        undo.enter_context(patch.object(draft_lengths, "WORTH", 0.0))
        undo.enter_context(patch.object(DraftBudget, "left", return_value=1e9))
        undo.enter_context(patch.object(speculation, "LONGEST_REST", 0))
        undo.enter_context(patch.object(guessing, "best_depth", lambda *prices: ahead))
        undo.enter_context(patch.object(guessing, "LEAST_CHANCE", 0.0))
        undo.enter_context(patch.object(lookup, "LEAST_CHANCE", 2.0 if by_model else 0.0))
        yield


def compared(engine: Engine, rng: np.random.Generator, n: int, most_tokens: int = 60) -> Counter[str]:
    """Have `n` random requests answered with drafts, and without: counts of answers, of tokens, and of drafts.

    Raises AssertionError where an answer differs. Several begin alike, so that they share what the cache holds.
    """
    asked = [_request(rng, most_tokens) for _ in range(n)]
    plain = _answers([engine.submit(*given, **more, draft="off") for given, more in asked])
    drafted = _answers([engine.submit(*given, **more) for given, more in asked])
    counts = Counter(answers=n)
    for (given, more), found, expected in zip(asked, drafted, plain, strict=True):
        assert_same_answer(found, expected, (given, more))
        counts.update(
            tokens=len(found.tokens), drafted=found.usage.drafted_tokens, accepted=found.usage.accepted_tokens
        )
    return counts


def check_absurd(engine: Engine, kind: str, prompts: Mapping[str, Sequence[int]]) -> None:
    """The guesses of a source are replaced: by tokens that never come ("wrong"), that come ("right"), or "random" ones.

    Raises AssertionError where answers to `prompts`, texts and their tokens, differ from those without, or accepted
    guesses are not as many as that.
    """
    # No answer ends before its last token: guesses behind an end are drafted, and never right.
    ends = dict.fromkeys(engine._loaded.tokenizer.eog_ids, float("-inf"))
    params = SamplingParams(temperature=0, max_tokens=60, logit_bias=ends)
    answers = {text: engine.generate(text, params, draft="off", cache=False).tokens for text in prompts}
    contexts = [[*prompts[text], *tokens] for text, tokens in answers.items()]
    of_sequence: dict[int, Any] = {}
    rng = np.random.default_rng(1)

    def noted(self: GuessSource, active: list[Any], prices: StepPrices) -> None:
        of_sequence.update({each._sequence: each for each in active})
        guess(self, active, prices)

    def behind(drafter: Any) -> int:
        """The token of the answer that its next guess stands for."""
        known = drafter._tokens[:]
        context = next(context for context in contexts if context[: len(known)] == known)
        after = context[len(known) + len(drafter._guesses) :]
        return after[0] if after else 5

    def absurd(self: GuessSource, parts: Sequence[DraftPart]) -> list[Guess]:
        guesses = []
        for part, made in zip(parts, compute(self, parts), strict=True):
            right = behind(of_sequence[part.sequence])
            token = {"right": right, "wrong": (right + 1) % 200, "random": int(rng.integers(0, 200))}[kind]
            guesses.append(made._replace(token=token, probability=1.0))
        return guesses

    compute, guess = GuessSource._compute, GuessSource._guess
    with patch.object(GuessSource, "_compute", absurd), patch.object(GuessSource, "_guess", noted):
        with held(engine):
            requests = [engine.submit(text, params) for text in prompts]
        found = [request.result() for request in requests]
    assert [answer.tokens for answer in found] == list(answers.values())
    drafted, accepted = (
        sum(getattr(answer.usage, name) for answer in found) for name in ("drafted_tokens", "accepted_tokens")
    )
    assert drafted > 50
    assert {"wrong": accepted < 0.1 * drafted, "right": accepted > 0.9 * drafted, "random": accepted < drafted}[kind]


def check_preempted(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
    """Answers to these prompts, side by side, need more cells than the engine has beside a session.

    Raises AssertionError where one differs from that without drafts, or none of those that drafted lost its cells.
    """
    expected = [engine.generate(prompt, params, draft="off", cache=False) for prompt in prompts]
    with engine.session() as session:
        session.append(list(range(1, engine.info.num_ctx - 8)))
        with held(engine):
            requests = [engine.submit(prompt, params) for prompt in prompts]
        found = [request.result() for request in requests]
    for answer, same in zip(found, expected, strict=True):
        assert_same_answer(answer, same)
    usages = [each.usage for each in found]
    assert [usage for usage in usages if usage.preemptions and usage.drafted_tokens > 20], usages


def _request(rng: np.random.Generator, most_tokens: int) -> tuple[tuple[str, SamplingParams], dict[str, Any]]:
    text = " ".join(PROMPTS[rng.integers(len(PROMPTS))] for _ in range(rng.integers(1, 4)))
    params = SamplingParams(**WAYS[rng.integers(len(WAYS))], max_tokens=int(rng.integers(1, most_tokens)))
    more = {} if rng.random() < PLAIN else FORMATS[rng.integers(len(FORMATS))]
    return (text, params), more


def _answers(requests: Sequence[Request]) -> list[Completion]:
    return [request.result() for request in requests]
