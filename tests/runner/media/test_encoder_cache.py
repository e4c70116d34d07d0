"""The encoder cache: a byte budget, least recently used first, and nothing lost that is being read."""

from __future__ import annotations

import random

import numpy as np

from ollama_engine.input import FloatArray
from ollama_engine.runner.media.encoder_cache import EncoderCache


def rows(n: int) -> FloatArray:
    return np.full((n, 4), n, np.float32)


def test_least_recently_used_goes_first() -> None:
    cache = EncoderCache(3 * 16)
    for key in (1, 2, 3):
        cache.put(key, rows(1))
    assert cache.get(1) is not None
    cache.put(4, rows(1))
    assert [key in cache for key in (1, 2, 3, 4)] == [True, False, True, True]
    assert cache.nbytes == 3 * 16
    cache.put(5, rows(2))
    assert [key in cache for key in (1, 3, 4, 5)] == [False, False, True, True]


def test_the_last_stays_even_where_it_exceeds_the_budget() -> None:
    cache = EncoderCache(0)
    cache.put(1, rows(9))
    assert cache.get(1) is not None
    cache.put(2, rows(1))
    assert (1 in cache, 2 in cache, cache.nbytes) == (False, True, 16)


def test_what_is_read_is_found() -> None:
    cache = EncoderCache(0)
    cache.put(1, rows(3))
    held = cache.get(1)
    assert held is not None
    view = held[1:]
    del held
    cache.put(2, rows(1))
    assert 1 in cache
    again = cache.get(1)
    assert again is not None
    assert again is view.base
    assert cache.nbytes == 16
    del again, view
    assert 1 not in cache


def test_bytes_are_those_of_what_it_keeps() -> None:
    draw = random.Random(7)
    cache = EncoderCache(1000)
    keys: list[int] = []
    for key in range(300):
        n = draw.randint(1, 30)
        cache.put(key, rows(n))
        keys.append(key)
        for seen in draw.sample(keys, min(3, len(keys))):
            found = cache.get(seen)
            assert found is None or len(found) >= 1
        del found
        kept = [value for seen in keys if (value := cache.get(seen)) is not None]
        assert cache.nbytes == sum(value.nbytes for value in kept) <= 1000
        assert len(cache) == len(kept)
        del kept
