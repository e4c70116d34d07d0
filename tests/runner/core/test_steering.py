"""Constraints and drafts: what a mask forbids never comes, and an answer is the same with any draft."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest

from ollama_engine import Completion, Engine, SamplingParams
from ollama_engine.errors import SamplingError
from ollama_engine.ml.weights.kernel_choice import ROWS_OF_F32_ALIKE
from ollama_engine.runner.core import submission
from ollama_engine.runner.core.new_requests import new_generation
from ollama_engine.runner.core.request_queue import RequestQueue
from ollama_engine.runner.schedule.scheduler import Candidate
from ollama_engine.runner.schedule.steering import Constraint, Draft, Drafter, TokenMask
from tests.support.engine_thread import idle
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import eventually

N_VOCAB = 320
EOS, EOT = N_VOCAB - 2, N_VOCAB - 1
NO_END = {EOS: float("-inf"), EOT: float("-inf")}
PROMPT = [5, 77, 200, 31, 8, 19, 4]
PATIENCE = 50


class Plain:
    """A constraint that ends nothing, forces nothing and makes its masks when they are asked for."""

    answered = ()
    ended = False
    forced = ()
    maker = None

    def mask(self) -> TokenMask | None:
        return None

    def accept(self, token: int) -> None:
        pass

    def foresee(self, guesses: Sequence[int]) -> list[tuple[int, bool]]:
        return [(guess, False) for guess in guesses]

    def reader(self, cut: str | None) -> None:
        return None


class Among(Plain):
    """Only these tokens may come, and none twice in a row."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self.last: int | None = None
        self.asked = 0

    def mask(self) -> TokenMask | None:
        self.asked += 1
        allowed = np.zeros(N_VOCAB, np.uint8)
        allowed[[token for token in self.tokens if token != self.last]] = 1
        return np.packbits(allowed, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> None:
        self.last = token


class Template(Plain):
    """Behind each token that is drawn, as many are forced as its number says, 3 at most."""

    def __init__(self) -> None:
        self.forced: list[int] = []  # type: ignore[assignment]
        self.drawn = self.guesses = 0

    def mask(self) -> TokenMask | None:
        assert not self.forced, "a forced token is not drawn"
        return None

    def accept(self, token: int) -> None:
        if self.forced:
            assert token == self.forced.pop(0)
        else:
            self.drawn += 1
            self.forced = self.behind(token)

    @staticmethod
    def behind(token: int) -> list[int]:
        return [(7 * token + i) % 300 for i in range(token % 4)]

    def foresee(self, guesses: Sequence[int]) -> list[tuple[int, bool]]:
        foreseen, forced = [], list(self.forced)
        for guess in guesses:
            if forced and guess != forced[0]:
                break
            foreseen.append((guess, bool(forced)))
            forced = forced[1:] if forced else self.behind(guess)
        self.guesses += sum(not forced for _, forced in foreseen)
        return foreseen + [(token, True) for token in forced]


class Says:
    """A drafter that proposes what follows in a text, and counts how many rows were asked for."""

    source = None

    def __init__(self, text: Sequence[int], wrong_at: Callable[[int], bool] = lambda at: False, most: int = 4) -> None:
        self.text = list(text)
        self.wrong_at = wrong_at
        self.most = most
        self.proposed = 0

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        assert most >= 0
        at = len(tokens)
        guesses = self.text[at : at + min(self.most, most)]
        self.proposed += len(guesses)
        return Draft([(token + 1) % 300 if self.wrong_at(at + i) else token for i, token in enumerate(guesses)])

    def end(self, answer: Sequence[int]) -> None:
        """Nothing is kept."""


class SaysOnceTold(Says):
    """A drafter that holds up the engine's thread until it may speak, so that a request can come meanwhile; and again
    after so many turns, until it is told that this was enough.
    """

    turns = 40

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.holds = Event()
        self.may = Event()
        self.enough = Event()

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        self.holds.set()
        assert self.may.wait(PATIENCE)
        self.turns -= 1
        assert self.turns >= 0 or self.enough.wait(20)
        return super().propose(tokens, most)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    dtype = "f32" if ROWS_OF_F32_ALIKE else "q8_0"
    write_tiny_llama(path, n_layer=2, seed=4, dtype=dtype)
    with Engine(path, num_ctx=128, parallel=3, threads=1, verify=True) as made:
        yield made


def ask(
    engine: Engine, params: SamplingParams, constraint: Constraint | None = None, drafter: Drafter | None = None,
    **options: Any,
) -> Completion:  # fmt: skip
    """An answer that is steered: no public call takes a constraint or a drafter yet."""

    def steered(*args: Any, **keywords: Any) -> Any:
        return new_generation(*args, **{**keywords, "constraint": constraint, "drafter": drafter})

    with patch.object(submission, "new_generation", steered):
        request = engine.submit(PROMPT, params, **options)
    return request.result(PATIENCE)


def greedy(n: int = 24, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": n, "logit_bias": NO_END, **fields})


def drawn(n: int = 24, **fields: Any) -> SamplingParams:
    return greedy(n, temperature=1.0, top_k=50, seed=7, **fields)


WITH_STATE = [
    drawn(40, mirostat=2, mirostat_tau=3, mirostat_eta=0.5),
    drawn(40, adaptive_target=0.1, adaptive_decay=0.7),
    drawn(40, dry_multiplier=2, dry_allowed_length=1, dry_sequence_breakers=()),
    drawn(40, xtc_probability=0.5, xtc_threshold=0.01),
]
"""Samplers that remember more than how often they drew."""


# -- constraints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [greedy(), drawn(), drawn(top_p=0.5, min_p=0.05)])
def test_only_what_the_mask_allows_comes(engine: Engine, params: SamplingParams) -> None:
    allowed = [3, 40, 41, 250, 311]
    constraint = Among(allowed)
    answer = ask(engine, params, constraint)
    assert set(answer.tokens) <= set(allowed)
    assert all(a != b for a, b in zip(answer.tokens, answer.tokens[1:], strict=False))
    assert (len(answer.tokens), constraint.asked) == (24, 24)
    assert engine.generate(PROMPT, params).tokens != answer.tokens


def test_a_masked_answer_is_that_of_the_same_bans(engine: Engine) -> None:
    """One mask for all tokens is a logit bias of minus infinity for the others."""

    class Even(Plain):
        def mask(self) -> TokenMask:
            return np.full(N_VOCAB // 32, 0x55555555, np.uint32)

    bans = {token: float("-inf") for token in [*range(1, N_VOCAB, 2), EOS, EOT]}
    for params in (greedy(), drawn()):
        expected = engine.generate(PROMPT, SamplingParams(**{**vars(params), "logit_bias": bans}))
        assert ask(engine, params, Even()).tokens == expected.tokens


def test_a_mask_that_allows_nothing_is_an_error_of_its_request(engine: Engine) -> None:
    with pytest.raises(SamplingError):
        ask(engine, greedy(), Among([]))
    assert len(engine.generate(PROMPT, greedy()).tokens) == 24


@pytest.mark.parametrize("method", ["mask", "accept", "foresee"])
def test_a_constraint_that_raises_ends_its_request_alone(engine: Engine, method: str) -> None:
    constraint = Among([3, 40])
    others = [engine.submit(PROMPT, greedy()) for _ in range(2)]
    with patch.object(constraint, method, side_effect=KeyError("told to")), pytest.raises(KeyError, match="told to"):
        ask(engine, greedy(), constraint, Says([3] * 40))
    assert others[0].result(PATIENCE).tokens == others[1].result(PATIENCE).tokens


def test_a_mask_of_the_wrong_size_is_refused(engine: Engine) -> None:
    constraint = Among([3, 40])
    with patch.object(constraint, "mask", lambda: np.zeros(3, np.uint32)), pytest.raises(ValueError, match="mask"):
        ask(engine, greedy(), constraint)


# -- drafts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params", [greedy(40), drawn(40), drawn(40, logprobs=2), greedy(40, repeat_penalty=1.5), *WITH_STATE]
)
@pytest.mark.parametrize(
    "wrong_at", [lambda at: False, lambda at: True, lambda at: at % 3 == 0, lambda at: at % 7 == 2],
    ids=["right", "wrong", "often wrong", "seldom wrong"],
)  # fmt: skip
def test_an_answer_is_the_same_with_any_draft(
    engine: Engine, params: SamplingParams, wrong_at: Callable[[int], bool]
) -> None:
    expected = engine.generate(PROMPT, params)
    drafter = Says([*PROMPT, *expected.tokens], wrong_at)
    steps = engine.metrics.steps
    found = ask(engine, params, drafter=drafter, cache=False)
    assert (found.tokens, found.text, found.finish_reason) == (expected.tokens, expected.text, "length")
    assert drafter.proposed > 0
    if params.logprobs is not None:
        assert found.logprobs is not None
        assert expected.logprobs is not None
        assert [entry.token for entry in found.logprobs] == list(found.tokens)
        np.testing.assert_allclose(
            [entry.logprob for entry in found.logprobs], [entry.logprob for entry in expected.logprobs], atol=1e-4
        )
    if not any(map(wrong_at, range(100))):
        assert engine.metrics.steps - steps < 15, "five tokens a step"


@pytest.mark.parametrize("wrong_every", [1000, 1, 3, 7])
def test_usage_metrics_and_timeline_count_what_each_step_verified(engine: Engine, wrong_every: int) -> None:
    """Four guesses a step; behind the first wrong one none is right, and the last tokens have room for fewer."""
    expected = engine.generate(PROMPT, greedy(40))
    text = [*PROMPT, *expected.tokens]
    at, counts = len(PROMPT) + 1, [(1, 0, 0)]
    while at < len(text):
        drafted = min(4, len(text) - at - 1)
        right = next((i for i in range(drafted) if (at + i) % wrong_every == 0), drafted)
        counts.append((right + 1, drafted, right))
        at += right + 1
    idle(engine)
    before, last = engine.metrics, engine.steps(1)[0].number
    found = ask(engine, greedy(40), drafter=Says(text, lambda at: at % wrong_every == 0), cache=False)
    assert found.tokens == expected.tokens
    idle(engine)
    steps = [step for step in engine.steps(100) if step.number > last]
    assert [(step.completion_tokens, step.drafted_tokens, step.accepted_tokens) for step in steps] == counts
    _, drafted, accepted = (sum(numbers) for numbers in zip(*counts, strict=True))
    assert (found.usage.drafted_tokens, found.usage.accepted_tokens) == (drafted, accepted)
    after = engine.metrics
    assert after.drafted_tokens - before.drafted_tokens == drafted
    assert after.accepted_tokens - before.accepted_tokens == accepted


def test_right_drafts_in_company(engine: Engine) -> None:
    expected = engine.generate(PROMPT, greedy(40))
    others = [engine.submit([9, *PROMPT], greedy(60)) for _ in range(2)]
    assert ask(engine, greedy(40), drafter=Says([*PROMPT, *expected.tokens])).tokens == expected.tokens
    assert others[0].result(PATIENCE).tokens == others[1].result(PATIENCE).tokens


def test_a_draft_that_found_no_room_and_is_not_proposed_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the step that was prepared meanwhile, which makes way."""
    expected = engine.generate(PROMPT, greedy(40))
    drafter = SaysOnceTold([*PROMPT, *expected.tokens])
    candidates, says = RequestQueue.candidates, drafter.propose
    left_out: list[int] = []

    def without_a_draft(queue: RequestQueue) -> list[Candidate]:
        drafted = [key for key, sequence in queue.running.items() if sequence.draft]
        if not drafted or left_out or len(queue.running) == 1:
            return candidates(queue)
        left_out.extend(drafted)
        return [candidate for candidate in candidates(queue) if candidate.key not in drafted]

    monkeypatch.setattr(RequestQueue, "candidates", without_a_draft)
    monkeypatch.setattr(drafter, "propose", lambda *given: Draft() if left_out else says(*given))
    with ThreadPoolExecutor(1) as callers:
        drafted = callers.submit(ask, engine, greedy(40), drafter=drafter)
        assert drafter.holds.wait(PATIENCE)
        other = engine.submit([9, *PROMPT], greedy(60))
        drafter.may.set()
        assert drafted.result(PATIENCE).tokens == expected.tokens
    assert len(other.result(PATIENCE).tokens) == 60
    assert left_out


def test_wrong_guesses_leave_the_cache(engine: Engine) -> None:
    expected = engine.generate(PROMPT, greedy(20))
    drafter = Says([*PROMPT, *expected.tokens], lambda at: True)
    assert ask(engine, greedy(20), drafter=drafter).tokens == expected.tokens
    again = engine.generate([*PROMPT, *expected.tokens, 3], greedy(8))
    assert again.usage.cached_tokens >= len(PROMPT) + 19
    assert again.tokens == engine.generate([*PROMPT, *expected.tokens, 3], greedy(8), cache=False).tokens


def test_a_stop_text_within_a_draft_ends_the_answer_there(engine: Engine) -> None:
    whole = engine.generate(PROMPT, greedy(24))
    stop = engine.detokenize(whole.tokens[9:11])
    expected = engine.generate(PROMPT, greedy(24, stop=[stop]))
    found = ask(engine, greedy(24, stop=[stop]), drafter=Says([*PROMPT, *whole.tokens]))
    assert (found.text, found.tokens, found.finish_reason) == (expected.text, expected.tokens, "stop")
    assert found.usage.completion_tokens == len(found.tokens)


@pytest.mark.parametrize("at", range(6))
def test_an_end_token_within_a_draft_ends_the_answer_there(engine: Engine, at: int) -> None:
    whole = engine.generate(PROMPT, greedy(24))
    ends_with = SamplingParams(temperature=0, max_tokens=24, logit_bias={EOT: float("-inf")})
    expected = engine.generate(PROMPT, ends_with)
    guesses = [*PROMPT, *whole.tokens[:at], EOS, *whole.tokens[at:]]
    assert ask(engine, ends_with, drafter=Says(guesses)).tokens == expected.tokens


def test_a_draft_ends_with_the_context_and_with_max_tokens(engine: Engine) -> None:
    for n in (1, 2, 5, None):
        params = greedy(24, max_tokens=n)
        expected = engine.generate(PROMPT, params)
        found = ask(engine, params, drafter=Says([*PROMPT, *expected.tokens, *[3] * 200], most=60))
        assert (found.tokens, found.finish_reason) == (expected.tokens, "length")


def test_a_draft_of_an_answer_that_shifts(engine: Engine) -> None:
    expected = engine.generate(PROMPT, greedy(300), on_overflow="shift", num_keep=2)
    drafter = Says([*PROMPT, *expected.tokens])
    found = ask(engine, greedy(300), drafter=drafter, on_overflow="shift", num_keep=2)
    assert found.tokens == expected.tokens
    assert found.usage.shifted_tokens > 0


def test_a_drafter_that_raises_ends_its_request_alone(engine: Engine) -> None:
    drafter = Says([])
    with patch.object(drafter, "propose", side_effect=KeyError("told to")), pytest.raises(KeyError, match="told to"):
        ask(engine, greedy(), drafter=drafter)
    assert len(engine.generate(PROMPT, greedy()).tokens) == 24


def test_a_draft_under_a_constraint(engine: Engine) -> None:
    """Each row of a step has a mask of its own."""
    allowed = [3, 40, 41, 250, 311]
    expected = ask(engine, greedy(30), Among(allowed))
    for wrong_at in (lambda at: False, lambda at: at % 4 == 1):
        drafter = Says([*PROMPT, *expected.tokens], wrong_at)
        assert ask(engine, greedy(30), Among(allowed), drafter).tokens == expected.tokens


@pytest.mark.parametrize("params", [greedy(60), drawn(60), greedy(60, logprobs=1)])
@pytest.mark.parametrize("wrong_at", [*(0, 1, 3, 5, 8), None])
def test_a_draft_goes_on_behind_forced_tokens(engine: Engine, params: SamplingParams, wrong_at: int | None) -> None:
    """Every n-th guess is wrong; None: the drafter leaves the forced tokens out, and the constraint puts them in."""
    expected = ask(engine, params, constraint := Template(), cache=False)
    drawn_tokens = constraint.drawn

    def wrong(at: int) -> bool:
        return bool(wrong_at) and at % wrong_at == 0

    drafter = Says([*PROMPT, *expected.tokens], wrong, most=8 if wrong_at is not None else 1)
    steps = engine.metrics.steps
    found = ask(engine, params, constraint := Template(), drafter, cache=False)
    steps = engine.metrics.steps - steps
    assert (found.tokens, found.text, found.logprobs) == (expected.tokens, expected.text, expected.logprobs)
    assert 0 <= found.usage.accepted_tokens <= found.usage.drafted_tokens == constraint.guesses
    if wrong_at == 1:
        assert found.usage.accepted_tokens == 0
    if wrong_at == 0:
        assert found.usage.accepted_tokens == found.usage.drafted_tokens
        assert steps < 60 / 8 + 3, "eight tokens a step and more, forced ones among them"
    if wrong_at is None and params.logprobs is None:
        assert steps < drawn_tokens / 2 + 3, "a guess and the token behind its forced ones"


@pytest.mark.parametrize("guesses", [[5000], [-1], [2**31], ["a"], [None], [3, 1.5]])
def test_guesses_that_are_no_tokens_end_their_request_alone(engine: Engine, guesses: list[Any]) -> None:
    others = [engine.submit(PROMPT, greedy()) for _ in range(2)]
    drafter = Says([])
    with patch.object(drafter, "propose", lambda tokens, most: Draft(guesses)), pytest.raises((TypeError, ValueError)):
        ask(engine, greedy(), drafter=drafter)
    assert others[0].result(PATIENCE).tokens == others[1].result(PATIENCE).tokens


def test_a_stop_text_within_a_draft_that_fills_the_context(engine: Engine) -> None:
    """The answer has ended: nothing is shifted for it, and nothing behind the stop text is kept."""
    prompt = list(range(1, 110))
    whole = engine.generate(prompt, greedy(40), on_overflow="shift", num_keep=2)
    stop = engine.detokenize(whole.tokens[12:14])
    params = greedy(40, stop=[stop])
    found = []
    for drafter in (None, Says([*prompt, *whole.tokens], most=60)):
        with patch.object(sys.modules[__name__], "PROMPT", prompt):
            answer = ask(engine, params, drafter=drafter, on_overflow="shift", num_keep=2)
        found.append((answer.tokens, answer.text, answer.usage.shifted_tokens))
    assert found[0] == found[1]


def test_wrong_guesses_of_others_do_not_hold_up_a_prompt(engine: Engine) -> None:
    expected = engine.generate(PROMPT, greedy(60))
    guessing = [SaysOnceTold([*PROMPT, *expected.tokens], lambda at: True, most=31) for _ in range(2)]
    with patch.object(submission, "new_generation", _with_drafters(guessing)):
        requests = [engine.submit(PROMPT, greedy(60)) for _ in guessing]
    eventually(lambda: any(drafter.holds.is_set() for drafter in guessing))
    coming = engine._engine_thread.coming
    with ThreadPoolExecutor(1) as caller:
        logits = caller.submit(engine.logits, list(range(1, 120)))
        eventually(lambda: engine._engine_thread.coming > coming)
        for drafter in guessing:
            drafter.may.set()
        assert logits.result(PATIENCE).shape == (119, N_VOCAB)
        for drafter in guessing:
            drafter.enough.set()
    assert {request.result(PATIENCE).tokens for request in requests} == {expected.tokens}


def _with_drafters(drafters: list[Says]) -> Callable[..., Any]:
    waiting = iter(drafters)
    return lambda *args, **keywords: new_generation(*args, **{**keywords, "drafter": next(waiting)})


# -- logits processors -------------------------------------------------------------------------------------------------


def test_a_mask_wins_over_a_logits_processor(engine: Engine) -> None:
    def want(ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32]) -> None:
        logits[[40, 77]] = 1e3

    answer = ask(engine, greedy(), Among([3, 40, 250]), logits_processors=[want])
    assert set(answer.tokens) <= {3, 40, 250}
    assert answer.tokens[::2] == (40,) * 12, "it is never twice in a row"


@pytest.mark.parametrize("wrong", [0, 3])
def test_a_logits_processor_has_its_say_in_every_row_of_a_draft(engine: Engine, wrong: int) -> None:
    shown: list[list[int]] = []

    def no_multiples(ids: npt.NDArray[np.int32], logits: npt.NDArray[np.float32]) -> None:
        shown.append(ids.tolist())
        logits[len(ids) % 7 :: 7] = -np.inf

    expected = ask(engine, drawn(), logits_processors=[no_multiples])
    assert all(token % 7 != (len(PROMPT) + i) % 7 for i, token in enumerate(expected.tokens))
    contexts = shown.copy()
    shown.clear()
    drafter = Says([*PROMPT, *expected.tokens], wrong_at=lambda at: wrong > 0 and at % wrong == 0)
    assert ask(engine, drawn(), drafter=drafter, logits_processors=[no_multiples]).tokens == expected.tokens
    assert shown == contexts, "each row is shown the tokens before it, once"
