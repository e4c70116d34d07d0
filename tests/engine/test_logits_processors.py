"""Logits processors: what they see, what they change, and who is hurt when one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ClosedError, ConfigError, SamplingError
from ollama_engine.runner.core import engine_thread
from tests.support.waiting import WAIT_SECONDS, ended, eventually, join

PROMPT = "Once upon a time there was a little girl called Lily. She"
Row = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=96, parallel=4, batch_size=48, threads=1, verify=True) as engine:
        yield engine


def force(tokens: Sequence[int], n_prompt: int) -> Callable[[Ids, Row], None]:
    """Lets these tokens come after a prompt, one after the other."""

    def forcing(ids: Ids, logits: Row) -> None:
        at = len(ids) - n_prompt
        if at < len(tokens):
            kept = logits[tokens[at]]
            logits[:] = -np.inf
            logits[tokens[at]] = kept

    return forcing


def test_they_see_the_tokens_and_the_models_logits(engine: Engine) -> None:
    seen: list[tuple[list[int], Row]] = []

    def note(ids: Ids, logits: Row) -> None:
        assert (ids.dtype, logits.dtype, ids.flags.writeable) == (np.int32, np.float32, False)
        seen.append((ids.tolist(), logits.copy()))

    found = engine.generate(PROMPT, GREEDY, logits_processors=[note])
    assert found.tokens == engine.generate(PROMPT, GREEDY).tokens
    prompt = engine.tokenize(PROMPT)
    assert [ids for ids, _ in seen] == [[*prompt, *found.tokens[:n]] for n in range(len(found.tokens))]
    logits = engine.logits([*prompt, *found.tokens[:-1]])[len(prompt) - 1 :]
    for (_, row), expected in zip(seen, logits, strict=True):
        np.testing.assert_allclose(row, expected, atol=0.1)


def test_what_they_change_is_what_is_sampled_and_logprobs_stay_the_models(engine: Engine) -> None:
    tokens = [300, 301, 302, 303]
    forcing = force(tokens, len(engine.tokenize(PROMPT)))
    params = SamplingParams(max_tokens=4, logprobs=1)
    found = engine.generate(PROMPT, params, logits_processors=[forcing])
    assert list(found.tokens) == tokens
    assert found.logprobs is not None
    scored = engine.score(engine.tokenize(PROMPT), tokens)
    np.testing.assert_allclose([entry.logprob for entry in found.logprobs], scored.logprobs, atol=0.05)


def test_what_they_return_replaces_the_row_and_goes_to_the_next(engine: Engine) -> None:
    sums: list[float] = []

    def only(ids: Ids, logits: Row) -> npt.NDArray[np.float64]:
        other = np.full(len(logits), -np.inf)
        other[77] = 1.0
        return other

    def note(ids: Ids, logits: Row) -> None:
        sums.append(float(np.exp(logits.astype(np.float64)).sum()))

    found = engine.generate(PROMPT, SamplingParams(max_tokens=3), logits_processors=(only, note))
    assert found.tokens == (77, 77, 77)
    assert sums == pytest.approx([np.e] * 3)


def test_they_come_before_penalties_and_biases(engine: Engine) -> None:
    def flat(ids: Ids, logits: Row) -> None:
        logits[:] = 0
        logits[[50, 60]] = 4

    found = engine.generate(
        PROMPT, SamplingParams(temperature=0, max_tokens=2, presence_penalty=1.0, logit_bias={60: 0.5}),
        logits_processors=[flat],
    )  # fmt: skip
    assert found.tokens == (60, 50)


def raising(ids: Ids, logits: Row) -> None:
    raise KeyError("mine")


def leaving(ids: Ids, logits: Row) -> None:
    raise SystemExit(3)


def nonsense(ids: Ids, logits: Row) -> None:
    logits[5] = np.nan


@pytest.mark.parametrize(
    ("processor", "told", "cause"),
    [
        (raising, r"logits_processors\[0\] \(raising\) raised KeyError\('mine'\)", KeyError),
        (leaving, "raised SystemExit", SystemExit),
        (nonsense, r"\(nonsense\) left NaN", type(None)),
        (lambda ids, logits: logits[:4], r"shape \[4\], expected \[\d+\]", type(None)),
        (lambda ids, logits: "text", "returned str: expected None or an array", (TypeError, ValueError)),
        (lambda ids, logits: logits.fill(-np.inf), "every token is at -inf", type(None)),
        (lambda ids, logits: ids.fill(0), "raised ValueError", ValueError),
        (lambda ids: None, "raised TypeError", TypeError),
    ],
)
def test_what_fails_ends_its_request_alone(engine: Engine, processor: Any, told: str, cause: Any) -> None:
    others = [engine.submit(PROMPT, GREEDY) for _ in range(2)]
    with pytest.raises(SamplingError, match=told) as caught:
        engine.generate(PROMPT, GREEDY, logits_processors=[processor])
    assert isinstance(caught.value.__cause__, cause)
    assert {other.result().tokens for other in others} == {engine.generate(PROMPT, GREEDY).tokens}
    assert engine.generate(PROMPT, GREEDY).usage.cached_tokens > 0, "what was computed is sound"


def test_only_rows_of_their_own_request_are_changed(engine: Engine) -> None:
    plain = engine.generate(PROMPT, GREEDY).tokens
    requests = [
        engine.submit(PROMPT, GREEDY, **({"logits_processors": [ban]} if n % 2 else {}))
        for n, ban in enumerate([lambda ids, logits: logits.__setitem__(slice(0, 700), -np.inf)] * 6)
    ]
    answers = [request.result().tokens for request in requests]
    assert answers[0::2] == [plain] * 3
    assert all(min(answer) >= 700 for answer in answers[1::2])


def test_several_answers_and_forks_have_the_same_processors(engine: Engine) -> None:
    calls: list[list[int]] = []

    def note(ids: Ids, logits: Row) -> None:
        calls.append(ids.tolist())

    params = SamplingParams(temperature=1.0, seed=3, max_tokens=4)
    answers = engine.generate(PROMPT, params, n=3, logits_processors=[note])
    prompt = engine.tokenize(PROMPT)
    for answer in answers:
        assert all([*prompt, *answer.tokens[:n]] in calls for n in range(len(answer.tokens)))
    calls.clear()
    request = engine.submit(PROMPT, GREEDY, logits_processors=[note])
    chunk = next(request)
    fork = engine.fork(request)
    assert fork.result().tokens
    assert [*prompt, *chunk.tokens] in calls
    without = len(calls)
    request.result()
    engine.fork(request, logits_processors=()).result()
    assert calls[without:] == [ids for ids in calls[without:] if len(ids) <= len(prompt) + 12]


def test_shifts_and_sessions_leave_them_the_whole_text(engine: Engine) -> None:
    lengths: list[int] = []

    def note(ids: Ids, logits: Row) -> None:
        lengths.append(len(ids))

    never = dict.fromkeys(engine._loaded.tokenizer.eog_ids, -np.inf)
    params = SamplingParams(temperature=0, max_tokens=120, logit_bias=never)
    found = engine.generate(PROMPT, params, on_overflow="shift", logits_processors=[note])
    n_prompt = len(engine.tokenize(PROMPT))
    assert found.usage.shifted_tokens > 0
    assert lengths == list(range(n_prompt, n_prompt + 120))
    lengths.clear()
    with engine.session() as session:
        session.append(PROMPT)
        session.generate(GREEDY, logits_processors=[note])
    assert lengths == list(range(n_prompt, n_prompt + len(lengths)))


def test_the_engine_is_not_used_from_one(engine: Engine) -> None:
    def ask(ids: Ids, logits: Row) -> None:
        engine.generate("a")

    with pytest.raises(SamplingError, match="the Engine is computing in this thread"):
        engine.generate(PROMPT, GREEDY, logits_processors=[ask])


def test_a_slow_one_can_be_cancelled(engine: Engine) -> None:
    entered, go = threading.Event(), threading.Event()

    def slow(ids: Ids, logits: Row) -> None:
        entered.set()
        assert go.wait(20)

    request = engine.submit(PROMPT, GREEDY, logits_processors=[slow])
    assert entered.wait(20)
    request.cancel()
    go.set()
    assert engine.generate(PROMPT, GREEDY).tokens


@pytest.mark.parametrize("given", [3, "ab", [None], raising, {raising: 1}])
def test_what_is_refused(engine: Engine, given: Any) -> None:
    with pytest.raises(ConfigError, match="logits_processors is a list of functions"):
        engine.generate(PROMPT, GREEDY, logits_processors=given)


def test_close_does_not_wait_for_ever_for_a_processor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says where it is; the engine's thread frees the model once it returns."""
    monkeypatch.setattr(engine_thread, "STUCK_SECONDS", 0.2)
    monkeypatch.setattr(engine_thread, "LOOK_SECONDS", 0.05)
    began, may_end = threading.Event(), threading.Lock()

    def blocks(ids: Ids, logits: Row) -> None:
        began.set()
        with may_end:
            pass

    engine = Engine(demo.path(), num_ctx=96, threads=1)
    thread = engine._engine_thread._thread
    with may_end:
        request = engine.submit(PROMPT, GREEDY, logits_processors=[blocks])
        assert began.wait(WAIT_SECONDS)
        assert ended(engine.close) is None
        assert thread.is_alive()
        assert "close() waits no longer" in caplog.text
        assert "test_logits_processors.py" in caplog.text
    join(thread)
    with pytest.raises((ClosedError, SamplingError)):
        request.result()


def test_close_waits_for_a_step_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own code always ends, and what it computes with cannot be freed before."""
    monkeypatch.setattr(engine_thread, "STUCK_SECONDS", 0.01)
    monkeypatch.setattr(engine_thread, "LOOK_SECONDS", 0.01)
    engine = Engine(demo.path(), num_ctx=2048, threads=1)
    request = engine.submit(PROMPT * 50, GREEDY)
    eventually(lambda: request.done or engine.slots())
    engine.close()
    assert not engine._engine_thread._thread.is_alive()
