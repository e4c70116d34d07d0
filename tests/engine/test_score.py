"""Scores of continuations: those of the log-softmax of `Engine.logits`, whatever is computed beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ollama_engine import Engine, SamplingParams, Score, Text, Tokens, demo
from ollama_engine.errors import ClosedError, ConfigError, ContextOverflowError, DeadlineError, TokenizerError
from tests.support.suite import scaled
from tests.support.tiny import write_tiny_llama

PROMPT = "Once upon a time there was a little girl called Lily. She had a red"
ENDS = [" ball", " ball.", " ball. It was round.", " dress", " cat and a", " cat and a dog", " hat", " cat"]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(
        demo.path(), num_ctx=192, parallel=3, batch_size=48, threads=1, kv_cache_type="f32", verify=True
    ) as engine:
        yield engine


def expected(engine: Engine, prompt: Sequence[int], continuation: Sequence[int]) -> tuple[list[float], bool]:
    """The log-probabilities of a continuation's tokens, and whether each is the best one."""
    logits = engine.logits([*prompt, *continuation]).astype(np.float64)[len(prompt) - 1 : -1]
    rows = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    return (
        [row[token] for row, token in zip(rows, continuation, strict=True)],
        bool((rows.argmax(axis=1) == continuation).all()),
    )


def check(engine: Engine, prompt: Sequence[int], found: Score, tokens: Sequence[int]) -> None:
    logprobs, is_greedy = expected(engine, prompt, tokens)
    assert found.tokens == tuple(tokens)
    np.testing.assert_allclose(found.logprobs, logprobs, atol=2e-4)
    assert found.logprob == pytest.approx(sum(logprobs), abs=1e-3)
    assert found.is_greedy == is_greedy


def cut(engine: Engine, prompt: str, continuation: str) -> tuple[list[int], list[int]]:
    """The rule of lm-evaluation-harness (`_encode_pair`), for prompts without white space at their end."""
    head, whole = engine.tokenize(prompt), engine.tokenize(prompt + continuation)
    assert whole[: len(head)] == head, "such texts are cut where the prompt ends"
    return head, whole[len(head) :]


def test_each_continuation_has_the_log_softmax_of_the_logits(engine: Engine) -> None:
    for found, end in zip(engine.score(PROMPT, ENDS), ENDS, strict=True):
        head, tail = cut(engine, PROMPT, end)
        check(engine, head, found, tail)


@settings(
    max_examples=scaled(60, quick=12), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    n_prompt=st.integers(1, 150),
    ends=st.lists(st.lists(st.integers(300, 303), min_size=1, max_size=8), min_size=1, max_size=14),
)
def test_any_continuations_in_tokens(engine: Engine, n_prompt: int, ends: list[list[int]]) -> None:
    """Of few tokens, so that many begin alike; more of them than run side by side."""
    prompt = np.random.default_rng(n_prompt).integers(300, 1000, n_prompt).tolist()
    for found, end in zip(engine.score(prompt, ends), ends, strict=True):
        check(engine, prompt, found, end)


def test_what_the_model_would_write_is_greedy(engine: Engine) -> None:
    answer = engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=9, logprobs=0))
    found, other = engine.score(engine.tokenize(PROMPT), [list(answer.tokens), [*answer.tokens[:-1], 5]])
    assert (found.is_greedy, other.is_greedy) == (True, False)
    assert answer.logprobs is not None
    np.testing.assert_allclose(found.logprobs, [entry.logprob for entry in answer.logprobs], atol=2e-4)
    assert found.perplexity == pytest.approx(np.exp(-np.mean(found.logprobs)))


def test_the_prompt_is_computed_once() -> None:
    with Engine(demo.path(), num_ctx=192, parallel=4, threads=1) as engine:
        head, _ = cut(engine, PROMPT, " ball")
        before = engine.metrics.prompt_tokens
        engine.score(head, [[first, 7, 8] for first in range(300, 312)])
        assert engine.metrics.prompt_tokens - before == len(head) + 12 * 2
        again = engine.metrics.prompt_tokens
        engine.score(head, [[first] for first in range(400, 500)])
        assert engine.metrics.prompt_tokens - again == 1, "the last row of the prompt scores all that follows it"
        long = [list(range(500 + 50 * n, 540 + 50 * n)) for n in range(3)]
        before = engine.metrics.prompt_tokens
        engine.score(head, [[*part, last, 7] for part in long for last in range(300, 308)])
        assert engine.metrics.prompt_tokens - before == 1 + 3 * 40 + 24, "what several begin with, too"


def test_many_continuations_leave_the_histories_of_others(engine: Engine) -> None:
    engine.generate("Tom and Sue went to the park with a dog.", SamplingParams(max_tokens=1))
    engine.score(PROMPT, [[first, 7] for first in range(300, 400)])
    again = engine.generate("Tom and Sue went to the park with a dog.", SamplingParams(max_tokens=1))
    assert again.usage.cached_tokens > 5
    prompt = engine.generate(PROMPT, SamplingParams(max_tokens=1))
    assert prompt.usage.cached_tokens == prompt.usage.prompt_tokens - 1, "its first path has left the prompt's"


def test_one_continuation_gives_one_score(engine: Engine) -> None:
    alone = engine.score(PROMPT, " ball.")
    assert isinstance(alone, Score)
    assert [alone] == engine.score(PROMPT, [" ball."])
    assert engine.score(PROMPT, list(alone.tokens)) == alone
    assert engine.score(PROMPT, []) == []
    twice = engine.score(PROMPT, (" ball.", " ball."))
    assert twice[0] == twice[1]


def test_for_asyncio(engine: Engine) -> None:
    async def ask() -> tuple[Any, ...]:
        return await asyncio.gather(*(engine.ascore(PROMPT, end) for end in (ENDS, ENDS[:1], " hat")))

    several, single, alone = asyncio.run(ask())
    reference = engine.score(PROMPT, ENDS)
    for found in (several, single, [alone]):
        for score in found:
            same = next(other for other in reference if other.tokens == score.tokens)
            np.testing.assert_allclose(score.logprobs, same.logprobs, atol=2e-4)


# -- tokens at the seam ------------------------------------------------------------------------------------------------


def test_white_space_at_the_end_of_a_prompt_is_the_continuations(engine: Engine) -> None:
    assert engine.score(PROMPT + " ", "ball") == engine.score(PROMPT, " ball")


def test_a_token_across_the_seam_leaves_the_text_as_it_is(engine: Engine) -> None:
    head = engine.tokenize("She had a ba")
    assert engine.tokenize("She had a ball")[: len(head)] != head, "otherwise this shows nothing"
    found = engine.score("She had a ba", "ll")
    assert engine.detokenize([*head, *found.tokens]) == "She had a ball"
    check(engine, head, found, found.tokens)


def test_prompts_in_tokens_and_segments_end_where_they_end(engine: Engine) -> None:
    ids = engine.tokenize(PROMPT)
    found = engine.score(PROMPT, " ball")
    for prompt in (ids, [Tokens(ids)], [Text(PROMPT)]):
        assert engine.score(prompt, " ball") == found  # type: ignore[arg-type]
    with_space = engine.score(engine.tokenize(PROMPT + " "), "ball")
    assert with_space.tokens == tuple(engine.tokenize("ball", add_special=False))


def test_a_prompt_before_token_ids_is_taken_as_it_is(engine: Engine) -> None:
    assert engine.score(PROMPT + " ", [5, 6]) == engine.score(engine.tokenize(PROMPT + " "), [5, 6])


# -- beside others -----------------------------------------------------------------------------------------------------


def test_beside_answers_that_are_written(engine: Engine) -> None:
    reference = engine.score(PROMPT, ENDS)
    requests = [engine.submit(PROMPT[n:], SamplingParams(seed=n, max_tokens=60)) for n in range(4)]
    for found, alone in zip(engine.score(PROMPT, ENDS, priority=1), reference, strict=True):
        np.testing.assert_allclose(found.logprobs, alone.logprobs, atol=2e-4)
    assert all(request.result().tokens for request in requests)


def test_one_after_the_other_where_no_more_fit(tmp_path: Any) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1).path
    rng = np.random.default_rng(3)
    prompt, ends = rng.integers(0, 200, 40).tolist(), rng.integers(0, 200, (24, 20)).tolist()
    options: dict[str, Any] = {"num_ctx": 64, "batch_size": 32, "threads": 1, "kv_cache_type": "f32", "verify": True}
    with Engine(path, parallel=1, **options) as engine:
        for found, end in zip(engine.score(prompt, ends), ends, strict=True):
            check(engine, prompt, found, end)


def test_closing_and_deadlines() -> None:
    engine = Engine(demo.path(), num_ctx=192, parallel=1, threads=1)
    with pytest.raises(DeadlineError):
        engine.score(PROMPT, [[first, *range(300, 400)] for first in range(300, 340)], timeout=1e-9)
    failed: list[BaseException] = []

    def score() -> None:
        try:
            while True:
                engine.score(PROMPT, [[first, *range(300, 400)] for first in range(300, 340)])
        except ClosedError as error:
            failed.append(error)

    thread = threading.Thread(target=score)
    thread.start()
    engine.close()
    thread.join(20)
    assert len(failed) == 1
    with pytest.raises(ClosedError):
        engine.score(PROMPT, " ball")


@pytest.mark.parametrize(
    ("prompt", "continuations", "error", "told"),
    [
        ("", ["a"], ConfigError, "the prompt is empty"),
        ([], ["a"], ConfigError, "the prompt is empty"),
        (PROMPT, ["a", ""], ConfigError, r"continuations\[1\]: a continuation has at least one token"),
        (PROMPT, "", ConfigError, "^a continuation has at least one token"),
        (PROMPT, [[1], []], ConfigError, r"continuations\[1\]"),
        (PROMPT, [[1], [999_999]], TokenizerError, r"continuations\[1\]: token 999999"),
        (PROMPT, ["a", ["b"]], ConfigError, r"continuations\[1\]"),
        (PROMPT, ["a", None], ConfigError, r"continuations\[1\]"),
        (PROMPT, 3, ConfigError, "int"),
        (PROMPT, ["a", "b " * 300], ContextOverflowError, r"continuations\[1\]: .* num_ctx is 192"),
        ([PROMPT], ["a"], ConfigError, "score takes one prompt at a time"),
        (None, ["a"], ConfigError, "NoneType"),
    ],
)
def test_what_is_refused(engine: Engine, prompt: Any, continuations: Any, error: type[Exception], told: str) -> None:
    if prompt in ("", []):
        prompt = [] if engine.tokenize("") else prompt
    with pytest.raises(error, match=told):
        engine.score(prompt, continuations)


# -- a published model -------------------------------------------------------------------------------------------------

QUESTIONS = [
    ("Question: What do bees make?\nAnswer:", [" honey", " milk", " bread", " cars"]),
    ("The capital of France is ", ["Paris", "London", "Berlin", "a fish"]),
    ("2 + 2 =", [" 4", " 5", " 22", " fish"]),
    ("Apples are fruit.\nCarrots are\n", ["vegetables.", "made of green cheese from Mars."]),
]


@pytest.mark.parametrize(("prompt", "ends"), QUESTIONS, ids=str)
def test_the_tokens_are_those_of_lm_evaluation_harness(smollm2_path: Path, prompt: str, ends: list[str]) -> None:
    """Its `_encode_pair`: white space goes to the continuation, and the joined text is cut where the prompt ends."""
    with Engine(smollm2_path, num_ctx=128, parallel=4, threads=1) as engine:
        found = engine.score(prompt, ends)
        context = prompt.rstrip()
        for score, end in zip(found, ends, strict=True):
            whole = engine.tokenize(context + prompt[len(context) :] + end)
            head = engine.tokenize(context)
            assert score.tokens == tuple(whole[len(head) :])
            np.testing.assert_allclose(score.logprobs, expected(engine, head, score.tokens)[0], atol=0.05)
        assert max(found, key=lambda score: score.logprob) == found[0], "the right answer"
