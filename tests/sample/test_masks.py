"""A token mask: the sampler gives the token that it would give if the disallowed logits were -inf."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.errors import SamplingError, ShapeError
from ollama_engine.sample import Sampler, SamplingParams, sample_rows, sampler_instructions
from tests.sample import rows, twin
from tests.sample.rows import ADVERSARIAL, Bitmap, BoolRow, FloatRow, bitmap
from tests.sample.test_instructions import LARGE
from tests.sample.test_twin import CUTS, QUICK_CUTS, cuts, logits_rows, penalties
from tests.support.instruction_sets import SAMPLER, RecordProperty, every, runnable
from tests.support.suite import slow_except
from tests.support.waiting import join

SETS = sampler_instructions()
V = 500
PENALISED = SamplingParams(seed=7, top_k=0, top_p=0.95, repeat_penalty=1.2, repeat_last_n=-1, frequency_penalty=0.1)


def ends(n: int) -> BoolRow:
    """Whole words and blocks are empty in between."""
    allowed = np.zeros(n, np.bool_)
    allowed[:3] = allowed[-3:] = True
    return allowed


def runs(n: int) -> BoolRow:
    """Full and empty stretches that end inside of words and blocks."""
    return np.arange(n) // 45 % 3 > 0


MASKS = {
    "1 %": lambda n: rows.some(n, 0.01, seed=3),
    "half": lambda n: rows.some(n, 0.5, seed=4),
    "99 %": lambda n: rows.some(n, 0.99, seed=5),
    "all": lambda n: np.ones(n, np.bool_),
    "ends": ends,
    "runs": runs,
}


def draw(
    params: SamplingParams, instructions: str, logits: FloatRow, mask: Bitmap | None, history: list[int], n: int
) -> list[int] | None:
    """n tokens, or None where there is none to choose."""
    sampler = Sampler(params, len(logits), instructions)
    sampler.accept_many(history)
    try:
        return [sampler.sample(logits, mask) for _ in range(n)]
    except SamplingError as error:
        if sampler.draws or "-inf" not in str(error):
            raise
        return None


def assert_as_minus_infinity(
    logits: FloatRow,
    allowed: BoolRow,
    params: SamplingParams,
    history: list[int],
    draws: int,
    record_property: RecordProperty,
) -> None:
    """On every instruction set."""
    mask = bitmap(allowed)
    infinite = rows.row(np.where(allowed, logits, -np.inf))
    expected = draw(params, "scalar", infinite, None, history, draws)
    for name in every(SAMPLER, SETS, record_property):
        assert draw(params, name, logits, mask, history, draws) == expected, name


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("cut", slow_except(CUTS, *QUICK_CUTS))
def test_adversarial_rows(cut: str, mask: str, record_property: RecordProperty) -> None:
    params = replace(CUTS[cut], seed=42)
    for name, logits in ADVERSARIAL.items():
        allowed = MASKS[mask](len(logits))
        assert_as_minus_infinity(logits, allowed, params, [], 2, record_property)
        if np.any(logits[allowed] > -np.inf):
            token = Sampler(params, len(logits)).sample(logits, bitmap(allowed))
            assert token == twin.sample(logits, params, 42, 0, allowed=allowed), name


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("row", LARGE)
def test_a_large_vocabulary(row: str, mask: str, record_property: RecordProperty) -> None:
    logits = LARGE[row]
    for cut in ("greedy", "defaults", "no cut", "top-k beyond the list", "top-p and min-p"):
        params = replace(CUTS[cut], seed=1)
        assert_as_minus_infinity(logits, MASKS[mask](len(logits)), params, [], 2, record_property)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("cut", ["greedy", "defaults", "no cut", "top-p only", "top-k beyond the list"])
def test_penalties_and_biases_see_allowed_tokens_only(cut: str, mask: str, record_property: RecordProperty) -> None:
    """The best tokens are penalised, banned or disallowed, and some are several of these."""
    logits = rows.gaussian(50_000, 5.0)
    best = np.argsort(-logits)
    allowed = MASKS[mask](50_000)
    params = replace(
        CUTS[cut],
        seed=5,
        repeat_penalty=3.0,
        repeat_last_n=-1,
        logit_bias={int(token): bias for token, bias in zip(best[::7][:60], [-math.inf, 30.0, -2.0] * 20, strict=True)},
    )
    assert_as_minus_infinity(logits, allowed, params, [int(token) for token in best[:300]], 2, record_property)


@settings(max_examples=200)
@given(logits=logits_rows, cut=cuts, penalty=penalties, share=st.sampled_from([0.02, 0.3, 0.9]), data=st.data())
def test_any_row_any_parameters_any_mask(
    logits: FloatRow, cut: dict[str, float], penalty: dict[str, float], share: float, data: st.DataObject
) -> None:
    tokens = st.integers(0, len(logits) - 1)
    bias = data.draw(st.dictionaries(tokens, st.one_of(st.floats(-50, 50, width=32), st.just(-math.inf)), max_size=5))
    history = data.draw(st.lists(tokens, max_size=30))
    allowed = rows.some(len(logits), share, seed=data.draw(st.integers(0, 2**32)))
    params = SamplingParams(**cut, **penalty, logit_bias=bias)  # type: ignore[arg-type]
    assert_as_minus_infinity(logits, allowed, params, history, 3, lambda *_: None)
    expected = [twin.sample(logits, params, int(cut["seed"]), n, history, allowed) for n in range(3)]
    drawn = draw(params, SETS[-1], logits, bitmap(allowed), history, 3)
    assert drawn == (None if expected[0] is None else expected)


@pytest.mark.parametrize("name", runnable(((name,) for name in SAMPLER), lambda _: SETS, place=0))
@pytest.mark.parametrize("n_vocab", [1, 31, 32, 33, 63, 64, 65, 1000, 10_001])
def test_one_allowed_token_is_the_token(n_vocab: int, name: str) -> None:
    logits = rows.gaussian(n_vocab, 5.0)
    samplers = [Sampler(replace(CUTS[cut], seed=3), n_vocab, name) for cut in CUTS]
    for token in {0, n_vocab // 2, n_vocab - 1}:
        mask = bitmap(np.arange(n_vocab) == token)
        assert [sampler.sample(logits, mask) for sampler in samplers] == [token] * len(samplers)


@pytest.mark.parametrize("n_vocab", [1, 31, 33, 63, 65, 95, V, 10_001])
def test_bits_beyond_the_vocabulary_are_ignored(n_vocab: int) -> None:
    logits = rows.gaussian(n_vocab, 5.0)
    mask = bitmap(rows.some(n_vocab, 0.5))
    beyond = np.uint32(2**32 - (1 << n_vocab % 32))
    for params in (SamplingParams(seed=1), SamplingParams(seed=1, top_k=0), SamplingParams(temperature=0)):
        empty = np.zeros_like(mask)
        empty[-1] = beyond
        assert draw(params, SETS[-1], logits, empty, [], 1) is None
        full = mask.copy()
        full[-1] |= beyond
        assert draw(params, SETS[-1], logits, full, [], 8) == draw(params, SETS[-1], logits, mask, [], 8)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_k=0)])
def test_a_mask_that_leaves_nothing_raises(params: SamplingParams) -> None:
    """Nothing is allowed, or nothing that the model and the biases do."""
    logits = rows.gaussian(V, 5.0)
    logits[7] = -np.inf
    only = bitmap(np.isin(np.arange(V), [7, 9]))
    sampler = Sampler(replace(params, logit_bias={9: -math.inf}), V)
    for mask in (np.zeros(16, np.uint32), only):
        with pytest.raises(SamplingError, match=r"a ban in logit_bias or the token mask\): none can be chosen"):
            sampler.sample(logits, mask)
    assert sampler.draws == 0


@pytest.mark.parametrize("name", runnable(((name,) for name in SAMPLER), lambda _: SETS, place=0))
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 63, 64, 4999, 5000])
def test_nan_and_infinity_raise_where_no_token_is_allowed_too(where: int, bad: float, name: str) -> None:
    logits = rows.gaussian(5001, 2.0)
    logits[where] = bad
    for allowed in (np.arange(5001) != where, np.arange(5001) == 2000):
        with pytest.raises(SamplingError, match=f"in 1 places, the first at token {where}:"):
            Sampler(SamplingParams(), 5001, name).sample(logits, bitmap(allowed))


def test_the_mask_is_only_read() -> None:
    logits, mask = rows.gaussian(V, 2.0), bitmap(rows.some(V, 0.5))
    mask.flags.writeable = False
    before = mask.copy()
    draw(PENALISED, SETS[-1], logits, mask, [], 20)
    assert np.array_equal(mask, before)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_with_masks_equal_one_by_one() -> None:
    n = 12
    logits = rows.gaussian(n * 320, 2.0).reshape(n, 320)
    masks = [None if i % 3 == 0 else bitmap(rows.some(300, (0.05, 0.5)[i % 2], seed=i)) for i in range(n)]
    alone, together = ([Sampler(SamplingParams(seed=i, top_k=i % 2 * 40), 300) for i in range(n)] for _ in range(2))
    expected = [s.sample(logits[i, :300].copy(), masks[i]) for i, s in enumerate(alone)]
    assert sample_rows(together, logits, masks) == expected
    assert expected != [s.sample(logits[i, :300].copy()) for i, s in enumerate(alone)]


def test_a_table_of_masks() -> None:
    logits = rows.gaussian(3 * V, 2.0).reshape(3, V)
    table = np.stack([bitmap(np.arange(V) == 100 * i) for i in range(3)])
    samplers = [Sampler(SamplingParams(seed=i), V) for i in range(3)]
    assert sample_rows(samplers, logits, table) == [0, 100, 200]
    assert sample_rows(samplers, logits, (table[2], None, table[0]))[::2] == [200, 0]


def test_an_empty_mask_spoils_only_its_row() -> None:
    logits = np.stack([rows.gaussian(V, 2.0)] * 3)
    samplers = [Sampler(PENALISED, V) for _ in range(3)]
    first, error, last = sample_rows(samplers, logits, [None, np.zeros(16, np.uint32), None])
    assert first == last == Sampler(PENALISED, V).sample(logits[0])
    assert isinstance(error, SamplingError)
    assert "token mask" in str(error)
    assert [sampler.draws for sampler in samplers] == [1, 0, 1]


WRONG_MASKS: list[Any] = [
    np.zeros(15, np.uint32),
    np.zeros(17, np.uint32),
    np.zeros(0, np.uint32),
    np.zeros(16, np.int32),
    np.zeros(16, np.uint64),
    np.zeros(64, np.uint8),
    np.ones(V, np.bool_),
    np.zeros(32, np.uint32)[::2],
    np.zeros((1, 16), np.uint32),
    [0] * 16,
    b"\0" * 64,
    7,
]


@pytest.mark.parametrize("wrong", WRONG_MASKS, ids=repr)
def test_wrong_masks_raise(wrong: Any) -> None:
    logits = rows.gaussian(V, 2.0)
    sampler, other = Sampler(PENALISED, V), Sampler(PENALISED, V)
    message = r"a token mask over 500 tokens must be a contiguous uint32 \[16\], got "
    with pytest.raises(ShapeError, match=message):
        sampler.sample(logits, wrong)
    with pytest.raises(ShapeError, match=message):
        sample_rows([other, sampler], np.stack([logits] * 2), [None, wrong])
    assert (sampler.draws, other.draws) == (0, 0)
    assert sampler.sample(logits) == other.sample(logits)  # neither is left claimed


def test_as_many_masks_as_rows() -> None:
    with pytest.raises(ShapeError, match=r"one mask \(or None\) for each of 1 samplers, got 2"):
        sample_rows([Sampler(PENALISED, V)], np.zeros((1, V), np.float32), [None, None])


@pytest.mark.parametrize("top_k", [0, 40])
def test_a_mask_that_another_thread_rewrites_gives_a_token_or_an_error(top_k: int) -> None:
    """Nonsense, since the mask changed while it was read; but a token of the vocabulary, or a SamplingError."""
    n_vocab = 30_000
    sampler = Sampler(SamplingParams(seed=1, top_k=top_k), n_vocab)
    logits = rows.gaussian(n_vocab, 3.0)
    values = [bitmap(rows.some(n_vocab, share)) for share in (0.0, 0.01, 0.13, 0.5, 1.0)]
    mask = values[0].copy()
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            for value in values:
                mask[:] = value

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            (token,) = sample_rows([sampler], logits[None], [mask])
            assert isinstance(token, SamplingError) or 0 <= token < n_vocab
    finally:
        done.set()
        join(writer)
