"""NgramIndex: it finds what comparing every place finds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.runner.speculative.ngram_index import LONGEST, SHORTEST, NgramIndex, agreements
from tests.support.suite import scaled

TRIED = 16


def compared(text: Sequence[int], end: Sequence[int], *, within: bool) -> tuple[int, int] | None:
    """The longest match, the latest of equal ones, of the last so many places of the last pair."""

    def common(place: int) -> int:
        most = min(len(end), place + 1, LONGEST)
        return next((n for n in range(most) if text[place - n] != end[-1 - n]), most)

    places = [place for place in range(len(text) - (1 if within else 0)) if common(place) >= SHORTEST]
    if not within and len(text) > 1 and common(len(text) - 1) >= SHORTEST:
        places.append(len(text) - 1)
    places = sorted(set(places), reverse=True)[:TRIED]
    found = [(place + 1, common(place)) for place in places if place + 1 < len(text)]
    return max(found, key=lambda match: match[1], default=None)


@given(st.lists(st.integers(0, 3), max_size=90), st.lists(st.integers(1, 9), max_size=9))
def test_it_finds_what_comparing_finds(text: list[int], parts: list[int]) -> None:
    index, at = NgramIndex(), 0
    for n in [*parts, len(text)]:
        index.extend(text[at : at + n])
        at += n
    assert index.part(0, len(index)) == text
    assert index.find(text[-LONGEST:], within=True) == compared(text, text, within=True)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_the_end_of_another_text(text: list[int], other: list[int]) -> None:
    index = NgramIndex()
    index.extend(text)
    assert index.find(other[-LONGEST:], within=False) == compared(text, other, within=False)


def agreement(texts: Sequence[Sequence[int]], first: int, second: int, third: int) -> int:
    """What earlier places say, by looking at all."""
    next_tokens = [
        text[place + 1]
        for text in texts
        for place in [i for i in range(1, len(text)) if (text[i - 1], text[i]) == (first, second)][-TRIED:]
        if place + 1 < len(text) and text[place + 1] >= 0
    ]
    share = next_tokens.count(third) / len(next_tokens) if next_tokens else 1.0
    if share == 1.0:
        return 4 if len(next_tokens) > 1 else 2
    return 0 if share <= 0.25 else 1 if share <= 0.5 else 3


@pytest.mark.parametrize("seed", range(30))
def test_how_far_texts_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [rng.integers(-1, 3, n).tolist() for n in rng.integers(0, [2, 30, 300])]
    indexes = [NgramIndex() for _ in texts]
    for index, text in zip(indexes, texts, strict=True):
        index.extend(text)
    guesses = rng.integers(0, 3, 60).tolist()
    expected = [agreement(texts, *three) for three in zip(guesses, guesses[1:], guesses[2:], strict=False)]
    assert agreements(tuple(indexes), guesses) == expected


def test_there_is_nothing_to_agree_about() -> None:
    assert agreements((), [1, 2]) == agreements((NgramIndex(),), []) == []
    assert agreements((NgramIndex(),), [1, 2, 3]) == [2]


@pytest.mark.parametrize("seed", range(scaled(20, quick=3)))
def test_long_texts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text = rng.integers(-1, 40, 3000).tolist()
    index = NgramIndex()
    for begin in range(0, len(text), 100):
        index.extend(text[begin : begin + 100])
        known = text[: begin + 100]
        assert index.find(known[-LONGEST:], within=True) == compared(known, known, within=True)
        other = rng.integers(-1, 40, 5).tolist()
        assert index.find(other, within=False) == compared(known, other, within=False)
    assert index.part(-5, 10**6) == text
    assert index.part(7, 5) == []


def test_what_is_no_token_is_refused() -> None:
    index = NgramIndex()
    with pytest.raises(OverflowError):
        index.extend([1, 2**31])
    with pytest.raises(TypeError):
        index.extend([2, None])  # type: ignore[list-item]
    assert index.part(0, 9) == [1, 2]
