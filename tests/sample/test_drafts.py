"""Several rows of one sequence in a step, as in speculative decoding: a row for each drafted token and one more.

Row 0 is sampled and accepted, then row 1 where that gave the drafted token, and so on. The tokens are those of steps
of one row each: what is not sampled draws nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from ollama_engine.errors import ConfigError, SamplingError, ShapeError
from ollama_engine.sample import Sampler, SamplingParams, accept_rows, sample_drafts, sample_rows
from tests.sample import rows
from tests.sample.rows import Bitmap, FloatRow, bitmap

V = 700
K = 4
"""Drafted tokens of a step; it has a row more."""
Mask = Callable[[list[int]], Bitmap | None]

REQUESTS = {
    "greedy": SamplingParams(temperature=0, presence_penalty=0.5),
    "defaults": SamplingParams(seed=1),
    "no cut": SamplingParams(seed=2, top_k=0, top_p=1),
    "penalties": SamplingParams(seed=3, top_k=0, repeat_penalty=1.3, repeat_last_n=8, frequency_penalty=0.2),
}


def logits_after(tokens: list[int]) -> FloatRow:
    """A model: the next logits follow from the last two tokens."""
    return rows.gaussian(V, 3.0, seed=sum(tokens[-2:]) + len(tokens))


def no_mask(tokens: list[int]) -> Bitmap | None:
    return None


def grammar(tokens: list[int]) -> Bitmap | None:
    """Which tokens are allowed changes with each; after some of them all are."""
    return None if len(tokens) % 5 == 4 else bitmap(np.arange(V) % 3 == len(tokens) % 3)


def one_row_steps(params: SamplingParams, mask: Mask, n: int) -> tuple[list[int], int]:
    sampler, tokens = Sampler(params, V), list[int]()
    for _ in range(n):
        tokens.append(sampler.sample(logits_after(tokens), mask(tokens)))
        sampler.accept(tokens[-1])
    return tokens, sampler.draws


def drafts(expected: list[int], n_right: int) -> list[int]:
    """K tokens, of which the first n_right are what the sampler will choose."""
    right = expected[:n_right]
    return right + [(token + 1) % V for token in expected[n_right:K]]


def verify(sampler: Sampler, tokens: list[int], drafted: list[int], mask: Mask) -> list[int]:
    """The tokens of one step: those drafted that the sampler chooses too, and one more."""
    along = [[*tokens, *drafted[:i]] for i in range(len(drafted) + 1)]
    logits, masks = np.stack([logits_after(before) for before in along]), [mask(before) for before in along]
    chosen: list[int] = []
    for row, allowed in zip(logits, masks, strict=True):
        chosen.append(sampler.sample(row, allowed))
        sampler.accept(chosen[-1])
        if chosen != drafted[: len(chosen)]:
            break
    return chosen


@pytest.mark.parametrize("mask", [no_mask, grammar])
@pytest.mark.parametrize("name", REQUESTS)
def test_tokens_and_draws_are_those_of_one_row_steps(name: str, mask: Mask) -> None:
    n = 40
    expected, draws = one_row_steps(REQUESTS[name], mask, n + K + 1)
    sampler, tokens = Sampler(REQUESTS[name], V), list[int]()
    taken = list[int]()
    while len(tokens) < n:
        n_right = len(taken) % (K + 1)
        chosen = verify(sampler, tokens, drafts(expected[len(tokens) :], n_right), mask)
        taken.append(len(chosen))
        tokens += chosen
    assert tokens == expected[: len(tokens)]
    assert taken == [1 + i % (K + 1) for i in range(len(taken))]
    assert sampler.draws == (0 if name == "greedy" else len(tokens))
    assert draws == (0 if name == "greedy" else len(expected))


def test_several_sequences_in_rounds() -> None:
    """Round j samples row j of each sequence whose drafts have all been right so far."""
    params = list(REQUESTS.values())
    expected = [one_row_steps(p, grammar, 2 * (K + 1))[0] for p in params]
    samplers = [Sampler(p, V) for p in params]
    tokens: list[list[int]] = [[] for _ in params]
    for _ in range(2):
        drafted = [drafts(expected[i][len(tokens[i]) :], i) for i in range(len(params))]
        before = [len(t) for t in tokens]
        going = list(range(len(params)))
        while going:
            logits = np.stack([logits_after(tokens[i]) for i in going])
            chosen = sample_rows([samplers[i] for i in going], logits, [grammar(tokens[i]) for i in going])
            accept_rows([samplers[i] for i in going], chosen)  # type: ignore[arg-type]
            for i, token in zip(going, chosen, strict=True):
                assert isinstance(token, int)
                tokens[i].append(token)
            going = [i for i in going if tokens[i][before[i] :] == drafted[i][: len(tokens[i]) - before[i]]]
    assert [len(t) for t in tokens] == [2 * (i + 1) for i in range(len(params))]
    assert tokens == [expected[i][: len(t)] for i, t in enumerate(tokens)]


def test_a_draft_taken_back_leaves_no_trace() -> None:
    """Rows that were tried on a fork are as if they had never been sampled."""
    params = REQUESTS["penalties"]
    expected, _ = one_row_steps(params, no_mask, 20)
    sampler, tokens = Sampler(params, V), list[int]()
    while len(tokens) < 20:
        attempt = sampler.fork()
        verify(attempt, tokens, drafts(expected[len(tokens) :], 2), no_mask)
        tokens.append(sampler.sample(logits_after(tokens)))
        sampler.accept(tokens[-1])
    assert tokens == expected


def test_rows_of_one_sequence_go_into_calls_of_their_own() -> None:
    sampler = Sampler(REQUESTS["defaults"], V)
    with pytest.raises(ConfigError, match="row 0 comes again in row 1; sample its rows in calls of their own"):
        sample_rows([sampler, sampler], np.stack([logits_after([]), logits_after([1])]))
    assert sampler.draws == 0


@pytest.mark.parametrize("n_right", range(K + 1))
def test_drafts_of_several_sequences_are_verified_in_one_call(n_right: int) -> None:
    """Each gives what one row a step gives; rows of others lie between, and the draws are as many."""
    params = list(REQUESTS.values())
    expected = [one_row_steps(each, no_mask, n_right + 1) for each in params]
    drafted = [drafts(tokens + [0] * K, n_right) for tokens, _ in expected]
    samplers = [Sampler(each, V) for each in params]
    table = np.stack([logits_after(draft[:n]) for draft in drafted for n in range(K + 1)])
    begins = [i * (K + 1) for i in range(len(params))]
    assert sample_drafts(samplers, table, begins, drafted) == [tokens for tokens, _ in expected]
    assert [sampler.draws for sampler in samplers] == [draws for _, draws in expected]
    following = [sampler.sample(logits_after(tokens)) for sampler, (tokens, _) in zip(samplers, expected, strict=True)]
    assert following == [one_row_steps(each, no_mask, n_right + 2)[0][-1] for each in params], "all were accepted"


def test_a_row_of_a_draft_that_has_no_token() -> None:
    table = np.stack([logits_after([]), np.full(V, np.nan, np.float32), logits_after([1])])
    best = int(np.argmax(table[0]))
    sampler, other = Sampler(SamplingParams(temperature=0), V), Sampler(SamplingParams(temperature=0), V)
    (first, error), (last,) = sample_drafts([sampler, other], table, [0, 2], [[best], []])
    assert (first, last) == (best, int(np.argmax(table[2])))
    assert isinstance(error, SamplingError)


WITHOUT_MEMORY = """
import _testcapi, numpy
from ollama_engine.sample import Sampler, SamplingParams, sample_drafts

table = numpy.zeros((20, 700), numpy.float32)
for failing in reversed(range(1000)):
    samplers = [Sampler(SamplingParams(seed=1), 700) for _ in range(4)]
    _testcapi.set_nomemory(failing, failing + 1)
    try:
        found = sample_drafts(samplers, table, [0, 5, 10, 15], [[0] * 4] * 4)
    except MemoryError:
        found = None
    _testcapi.remove_mem_hooks()
    draws = [sampler.draws for sampler in samplers]
    if found is None:
        assert draws == [0] * 4, (failing, draws)
        break
    without = [isinstance(tokens[-1], MemoryError) for tokens in found]
    assert sum(without) < 2, failing
    assert all(error or len(tokens) == n for error, tokens, n in zip(without, found, draws)), failing
    print("some" if any(without) else "all")
"""


def test_without_memory_no_sampler_is_ahead_of_its_tokens() -> None:
    """Each allocation of a call fails, the last one first: a list holds the error alone, or nothing was sampled.

    In a child: where an allocation of a traceback fails, CPython 3.11 may crash.
    """
    pytest.importorskip("_testcapi", reason="this Python has no tests of its own")
    child = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    assert set(child.stdout.split()) == {"some", "all"}


def test_rows_that_a_draft_does_not_have() -> None:
    sampler, table = Sampler(REQUESTS["defaults"], V), np.stack([logits_after([])] * 2)
    for begins, drafted in (([1], [[3]]), ([-1], [[]]), ([2], [[]]), ([0, 1], [[]]), ([0], [[], []])):
        with pytest.raises(ShapeError):
            sample_drafts([sampler], table, begins, drafted)
    with pytest.raises(ShapeError, match="rows of these logits are 0 to 1, got 2"):
        sample_rows([sampler], table, rows=[2])
    assert sampler.draws == 0


def test_rows_may_be_chosen_from_more() -> None:
    table = np.stack([logits_after([n]) for n in range(6)])
    chosen = [4, 1]
    fresh = [Sampler(REQUESTS["no cut"], V) for _ in range(4)]
    assert sample_rows(fresh[:2], table, rows=chosen) == sample_rows(fresh[2:], np.ascontiguousarray(table[chosen]))


def test_each_token_of_a_draft_is_penalized_in_the_rows_behind_it() -> None:
    row = np.linspace(3, 1, V, dtype=np.float32)
    sampler = Sampler(SamplingParams(temperature=0, repeat_penalty=9.0, repeat_last_n=-1), V)
    assert sample_drafts([sampler], np.stack([row] * 4), [0], [[0, 1, 2]]) == [[0, 1, 2, 3]]
    assert sampler.sample(row) == 4
