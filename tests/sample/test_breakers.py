"""Sequence breakers: what a finder gets from a vocabulary, beside a search token by token; what DRY makes of them."""

from __future__ import annotations

import random
import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.sample import BreakerFinder, Sampler, SamplingParams, SequenceBreakers
from tests.sample import twin
from tests.support.suite import scaled

V = 64
DRY = SamplingParams(temperature=1, top_k=0, top_p=1, seed=1, dry_multiplier=0.7, dry_allowed_length=1, samplers="dry")


class Bytes:
    """A vocabulary of given tokens; a text is encoded a byte at a time, by the first token that is that byte."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens + [bytes([i]) for i in range(256)]

    def token_bytes(self, token_id: int, *, skip_special: bool) -> bytes:
        assert not skip_special
        return self.tokens[token_id]

    def encode(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not add_special
        assert not parse_special
        return [self.tokens.index(bytes([byte])) for byte in text]


def sequences_of(breakers: SequenceBreakers) -> set[tuple[int, ...]]:
    singles = {(i,) for i in range(breakers.n_vocab) if breakers.single[i // 32] >> i % 32 & 1}
    longer = {
        (breakers.first[i], *breakers.rest[breakers.start[i] : breakers.start[i + 1]])
        for i in range(len(breakers.first) - 1)
    }
    return singles | longer


def expected_sequences(vocabulary: Bytes, text: bytes) -> set[tuple[int, ...]]:
    """Tokens with the text in them, and those that end with its beginning, followed by the rest."""
    found = set[tuple[int, ...]]()
    for token, data in enumerate(vocabulary.tokens):
        if text in data:
            found.add((token,))
            continue
        for cut in range(1, len(text)):
            if data.endswith(text[:cut]):
                rest = vocabulary.encode(text[cut:], add_special=False, parse_special=False)
                found.add((token, *rest[:20]))
    return found


letters = st.text("ab:\n", max_size=4).map(str.encode)


@settings(max_examples=scaled(300, quick=60))
@given(tokens=st.lists(letters, max_size=30), texts=st.lists(st.text("ab:\né", min_size=1, max_size=6), max_size=3))
def test_finding_them(tokens: list[bytes], texts: list[str]) -> None:
    vocabulary = Bytes(tokens)
    finder = BreakerFinder(len(vocabulary.tokens), vocabulary)
    found = finder.find(texts)
    expected = [expected_sequences(vocabulary, text.encode()) for text in texts]
    assert sequences_of(found) == set().union(*expected)
    assert finder.find(texts) is found
    assert list(found.first[:-1]) == sorted(found.first[:-1])


def test_a_long_breaker_is_cut() -> None:
    """As llama.cpp does: 40 bytes of it count, and 20 tokens behind the first."""
    text = bytes(range(65, 125))
    found = sequences_of(BreakerFinder(256, Bytes([])).find([text.decode()]))
    assert found == {tuple(text[:21])}


def penalties(sampler: Sampler) -> dict[int, float]:
    found = sampler.candidates(np.zeros(V, np.float32))
    best = max(found.values())
    return {token: p for token, p in found.items() if p < best}


@settings(max_examples=scaled(500, quick=100))
@given(
    chunks=st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=6),
    window=st.integers(-1, 25),
    allowed=st.integers(0, 4),
    sequences=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=3),
)
def test_any_history_however_it_arrives(
    chunks: list[list[int]], window: int, allowed: int, sequences: list[list[int]]
) -> None:
    """The Z-algorithm over a window that moves, beside a search from every place."""
    params = SamplingParams(
        **{**vars(DRY), "dry_penalty_last_n": window, "dry_allowed_length": allowed, "dry_base": 1.01}
    )
    sampler = Sampler(params, V, breakers=SequenceBreakers.of(V, sequences))
    history: list[int] = []
    for chunk in chunks:
        sampler.accept_many(chunk)
        history += chunk
        if window != 0:
            assert set(penalties(sampler)) == set(twin.repetitions(history, params, sequences))
    assert set(penalties(sampler.fork())) == set(penalties(sampler))


def test_the_cost_is_linear_in_the_history() -> None:
    """Histories repeat themselves as much as can be: quadratic work on 16 times the tokens takes 256 times as long."""
    source = random.Random(1)
    for pattern in ([0], [0, 1], [source.randrange(2) for _ in range(50)]):
        times = []
        for n in (8_000, 128_000):
            sampler = Sampler(DRY, V)
            sampler.accept_many((pattern * n)[:n])
            logits = np.zeros(V, np.float32)
            times.append(min(_seconds(sampler, logits) for _ in range(7)))
        assert times[1] < 80 * times[0]


def _seconds(sampler: Sampler, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    begin = time.perf_counter()
    sampler.sample(logits)
    return time.perf_counter() - begin
