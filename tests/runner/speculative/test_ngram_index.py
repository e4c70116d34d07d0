"""NgramIndex: it finds what comparing every place finds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.runner.speculative import ngram_index
from ollama_engine.runner.speculative.ngram_index import LONGEST, MANY, SHORTEST, TRIED, Match, NgramIndex
from tests.support.suite import scaled


def compared(text: Sequence[int], end: Sequence[int], *, within: bool) -> Match | None:
    """The longest match, the latest of equal ones, of the last so many places of the last pair."""

    def common(place: int) -> int:
        most = min(len(end), place + 1, LONGEST)
        return next((n for n in range(most) if text[place - n] != end[-1 - n]), most)

    places = [place for place in range(len(text) - (1 if within else 0)) if common(place) >= SHORTEST]
    if not within and len(text) > 1 and common(len(text) - 1) >= SHORTEST:
        places.append(len(text) - 1)
    places = sorted(set(places), reverse=True)[:TRIED]
    found = [Match(place + 1, common(place)) for place in places if place + 1 < len(text)]
    return max(found, key=lambda match: match.length, default=None)


@given(st.lists(st.integers(0, 3), max_size=90), st.lists(st.integers(1, 9), max_size=9))
def test_it_finds_what_comparing_finds(text: list[int], parts: list[int]) -> None:
    index, at = NgramIndex(), 0
    for n in [*parts, len(text)]:
        index.extend(text[at : at + n])
        at += n
    assert index.tokens == text
    assert index.find(text[-LONGEST:], within=True) == compared(text, text, within=True)


@given(st.lists(st.integers(0, 2), max_size=40), st.lists(st.integers(0, 2), max_size=40))
def test_the_end_of_another_text(text: list[int], other: list[int]) -> None:
    index = NgramIndex()
    index.extend(text)
    assert index.find(other[-LONGEST:], within=False) == compared(text, other, within=False)


@pytest.mark.parametrize("seed", range(scaled(20, quick=3)))
def test_many_tokens_at_once_are_as_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = np.random.default_rng(seed).integers(0, 12, 4 * MANY).tolist()
    at_once, singly = NgramIndex(), NgramIndex()
    for begin, end in ((0, 5), (5, 3 * MANY), (3 * MANY, 4 * MANY)):
        at_once.extend(text[begin:end])
    monkeypatch.setattr(ngram_index, "MANY", 10 * MANY)
    singly.extend(text)
    assert (at_once.tokens, at_once._latest, at_once._before) == (singly.tokens, singly._latest, singly._before)
