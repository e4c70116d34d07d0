"""Models with recurrent states: prefixes, several answers and drafts compute only what is new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import Completion, Engine, SamplingParams
from ollama_engine.kvcache.state_slots import StateSlots
from ollama_engine.runner.core import submission
from ollama_engine.runner.core.new_requests import new_generation
from ollama_engine.runner.prefix.state_keeper import StateKeeper
from ollama_engine.runner.schedule.checkpoints import MOST_RETURNS
from tests.models import families
from tests.models.variants import prompt
from tests.support.guesses import Guesses, drafting
from tests.support.suite import slow_except

N_CTX = 256
EOS = families.SIZES["eos_token_id"]


def greedy(n: int = 12) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, logit_bias=families.BANNED)


MODELS = ("lfm2", "mamba2", "falcon-h1", "nemotron_h_moe")
"""States of one part or two; layers with keys and values in some blocks, in none, beside a state, and with neither."""


@pytest.fixture(scope="module", params=slow_except(MODELS, "lfm2"))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(families.converted(families.case(request.param), tmp_path_factory.mktemp(request.param)))


def opened(path: str, **options: Any) -> Engine:
    settings = {"num_ctx": N_CTX, "threads": 1, "gpu_layers": 0, "kv_cache_type": "f32", "verify": True, **options}
    return Engine(path, **settings)


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with opened(path) as engine:
        yield engine


def alone(path: str, ids: list[int], n: int = 12) -> tuple[int, ...]:
    with opened(path, parallel=1) as engine:
        return engine.generate(ids, greedy(n)).tokens


def cached(answer: Completion) -> int:
    return answer.usage.cached_tokens


def test_the_next_turn_computes_what_is_new(engine: Engine, path: str) -> None:
    history = prompt(60)
    for turn in range(4):
        answer = engine.generate(history, greedy())
        assert answer.tokens == alone(path, history)
        if turn:
            assert cached(answer) == len(history) - 10 - 1, "all but the new message and the answer's last token"
        history = [*history, *answer.tokens, *prompt(10, seed=turn + 1)]


def test_the_same_prompt_again_computes_its_last_token(engine: Engine) -> None:
    first, second = (engine.generate(prompt(50), greedy()) for _ in range(2))
    assert (cached(first), cached(second)) == (0, 49)
    assert first.tokens == second.tokens


def test_a_shared_prompt_is_computed_twice(engine: Engine, path: str) -> None:
    """The first prompt does not know where the second one parts from it; the third finds a checkpoint there."""
    shared = prompt(40)
    questions = [[*shared, *prompt(15, seed=seed)] for seed in (1, 2, 3, 4)]
    answers = [engine.generate(question, greedy()) for question in questions]
    assert [cached(answer) for answer in answers] == [0, 0, 40, 40]
    assert [answer.tokens for answer in answers] == [alone(path, question) for question in questions]


def test_questions_behind_a_long_prompt_and_a_chat_behind_them_compute_what_is_new(path: str) -> None:
    """2,000 tokens and 8 questions of 40; then 10 turns of 60 and answers of 16. The second question goes on from the
    end of the first one's last block, 1,984, and leaves a checkpoint where the questions part."""
    shared = [7, *prompt(1999)]
    with opened(path, num_ctx=4096, parallel=2, verify=False) as engine:
        computed = []
        for seed in range(8):
            usage = engine.generate([*shared, *prompt(40, seed=seed + 1)], greedy(2)).usage
            computed.append(usage.prompt_tokens - usage.cached_tokens)
        assert computed == [2040, 2040 - 1984, *[40] * 6]
        history = [*shared, *prompt(40, seed=1)]
        for turn in range(10):
            history += prompt(60, seed=20 + turn)
            usage, tokens = (answer := engine.generate(history, greedy(16))).usage, answer.tokens
            if turn:
                assert usage.prompt_tokens - usage.cached_tokens == 60 + 1, "the message and the answer's last token"
            history += tokens


def test_ends_of_messages_are_checkpoints(engine: Engine) -> None:
    end = EOS
    system = [*prompt(20), end]
    engine.generate([*system, *prompt(12, seed=1)], greedy(2))
    assert cached(engine.generate([*system, *prompt(12, seed=2)], greedy(2))) == len(system)


def test_requests_in_company_answer_as_alone(path: str) -> None:
    """Prompts of many lengths, cut by a small batch, beside answers; some share a prefix that is being computed."""
    prompts = [prompt(n, seed=n % 3) for n in (3, 70, 21, 40, 1, 55, 90, 33)]
    expected = [alone(path, ids, 20) for ids in prompts]
    with opened(path, batch_size=16, parallel=3) as engine:
        for _ in range(2):
            requests = [engine.submit(ids, greedy(20)) for ids in prompts]
            assert [request.result().tokens for request in requests] == expected


def test_several_answers_share_the_prompt(engine: Engine, path: str) -> None:
    expected = alone(path, prompt(40))
    answers = engine.generate(prompt(40), greedy(), n=3)
    assert [answer.tokens for answer in answers] == [expected] * 3
    assert sorted(cached(answer) for answer in answers) == [0, 39, 39]


@pytest.mark.parametrize("wrong_every", [1, 2, 3, 7])
def test_wrong_drafts_go_back_to_a_state(path: str, wrong_every: int) -> None:
    """A state cannot lose its last tokens: it is kept behind each of the first guesses."""
    ids, asked = prompt(40), list[tuple[int, int]]()

    def noting(keeper: StateKeeper, slot: int, length: int) -> int:
        asked.append((length, found := go_back(keeper, slot, length)))
        return found

    go_back = StateKeeper.go_back
    params = SamplingParams(temperature=0, max_tokens=40, logit_bias=families.BANNED)
    with opened(path, parallel=2) as engine:
        expected = engine.generate(ids, params).tokens
        guesses = (Guesses([*ids, *expected], wrong_every) for _ in range(2))
        with drafting(*guesses), patch.object(StateKeeper, "go_back", noting):
            requests = [engine.submit(ids, params, cache=cache) for cache in (True, False)]
            assert [request.result().tokens for request in requests] == [expected] * 2
        if wrong_every <= MOST_RETURNS:
            assert [found for _, found in asked] == [length for length, _ in asked], "none is computed again"
        assert len(asked) > 5
        after = [*ids, *expected[:-1], 7]
        assert engine.generate(after, greedy()).tokens == alone(path, after)


@pytest.mark.parametrize("drafts", [False, True])
def test_behind_a_stop_text_the_next_turn_goes_on_from_the_answers_end(path: str, drafts: bool) -> None:
    """When a text stops, the step behind it is computed already; with drafts, so are later tokens of its own step."""
    ids = prompt(40)
    with opened(path, parallel=2) as engine, opened(path, parallel=1) as other:
        whole = other.generate(ids, greedy(40), draft="off", cache=False)
        for at in range(2, 17, 2):
            stop = whole.text[at : at + 2]
            params = SamplingParams(temperature=0, max_tokens=40, logit_bias=families.BANNED, stop=[stop])
            with drafting(Guesses([*ids, *whole.tokens], 1000) if drafts else None):
                answer = engine.generate(ids, params, draft="off")
            assert (answer.finish_reason, answer.text) == ("stop", whole.text[: whole.text.index(stop)])
            assert (answer.usage.accepted_tokens > 0) == drafts
            history = [*ids, *answer.tokens]
            turn = engine.generate([*history, *prompt(10, seed=at)], greedy())
            assert cached(turn) >= len(history) - 1
            assert turn.tokens == other.generate([*history, *prompt(10, seed=at)], greedy(), cache=False).tokens


@pytest.mark.parametrize("company", [False, True])
def test_behind_an_end_token_the_next_turn_goes_on_from_the_answers_end(path: str, company: bool) -> None:
    """The step behind it is prepared by then, and launched where another sequence has a row in it."""

    def ending(*args: Any, **keywords: Any) -> Any:
        generation = new_generation(*args, **keywords)
        generation.eog_ids = frozenset({whole[at]})
        return generation

    ids = prompt(40)
    with opened(path, parallel=2) as engine, opened(path, parallel=1) as other:
        whole = other.generate(ids, greedy(30)).tokens
        at = next(i for i in range(5, 30) if whole[i] not in whole[:i])
        beside = engine.submit(prompt(20, seed=1), greedy(100)) if company else None
        with patch.object(submission, "new_generation", ending):
            answer = engine.generate(ids, greedy(30), draft="off")
        assert (answer.finish_reason, answer.tokens) == ("stop", whole[:at])
        history = [*ids, *answer.tokens]
        turn = engine.generate([*history, *prompt(10, seed=2)], greedy())
        assert cached(turn) == len(history)
        assert turn.tokens == other.generate([*history, *prompt(10, seed=2)], greedy(), cache=False).tokens
        assert beside is None or beside.result().tokens == alone(path, prompt(20, seed=1), 100)


def test_answers_change_their_states_in_place(engine: Engine, path: str) -> None:
    """But for the one before the prompt's last token, which is kept."""
    changed: list[bool] = []

    def noting(slots: StateSlots, runs: Any, *, in_place: bool = False) -> Any:
        before = {sequence: slots.of(sequence).get(run.first) for sequence, run in runs.items()}
        made = place(slots, runs, in_place=in_place)
        changed.append(any(slot == before[sequence] for sequence in made for slot in made[sequence].values()))
        return made

    place = StateSlots.place
    with patch.object(StateSlots, "place", noting):
        assert engine.generate(prompt(40), greedy(20), draft="off").tokens == alone(path, prompt(40), 20)
        assert changed.count(True) >= 17
        changed.clear()
        requests = [engine.submit(prompt(40, seed=seed), greedy(30), draft="off") for seed in (1, 2)]
        assert [len(request.result().tokens) for request in requests] == [30, 30]
        assert changed.count(True) >= 20, "in company, too"
        again = [engine.generate(prompt(40), greedy(5), draft="off") for _ in range(3)]
        assert [cached(answer) for answer in again] == [39] * 3, "a checkpoint is not changed"


def test_a_full_context_is_computed_again_behind_what_is_kept(path: str) -> None:
    with opened(path, num_ctx=64) as engine:
        params = SamplingParams(temperature=0, max_tokens=60, logit_bias=families.BANNED)
        answer = engine.generate(prompt(50), params, on_overflow="shift", num_keep=10)
        assert len(answer.tokens) == 60
        assert answer.usage.shifted_tokens > 0


def test_checkpoints_take_the_memory_that_they_are_given(path: str) -> None:
    with opened(path, state_cache_bytes=0, parallel=2) as few, opened(path, parallel=2) as many:
        n_states = [engine.memory.devices[-1].states for engine in (few, many)]
        assert n_states[0] * 3 < n_states[1] * 2
        assert "states" in str(few.memory)
        for seed in range(6):
            few.generate(prompt(40, seed=seed), greedy(4))
        assert cached(few.generate(prompt(40, seed=5), greedy(4))) == 39, "the latest prompt's"
        assert cached(few.generate(prompt(40, seed=0), greedy(4))) == 0, "the first one's is given up"
