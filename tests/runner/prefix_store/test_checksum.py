"""Checksum is XXH64, however its bytes come."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.runner.prefix_store.checksum import Checksum

PUBLISHED = {
    b"": 0xEF46DB3751D8E999,
    b"a": 0xD24EC4F1A98C6E5B,
    b"abc": 0x44BC2CF5AD770999,
    b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
}
"""By seed 0, as the tests of xxhash for Python have them."""


def checksum(*pieces: bytes) -> bytes:
    found = Checksum()
    for piece in pieces:
        found.update(piece)
    return found.digest()


@pytest.mark.parametrize("data", PUBLISHED)
def test_it_is_the_published_one(data: bytes) -> None:
    assert checksum(data) == PUBLISHED[data].to_bytes(8, "little")


@given(st.binary(max_size=200), st.lists(st.integers(0, 200)))
def test_pieces_do_not_matter(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(data)]
    assert checksum(*(data[a:b] for a, b in pairwise(places))) == checksum(data)


def test_every_bit_and_every_length_counts() -> None:
    data = np.random.default_rng(0).bytes(3 * 32 + 15)
    number = int.from_bytes(data, "little")
    flipped = [(number ^ 1 << bit).to_bytes(len(data), "little") for bit in range(8 * len(data))]
    cut = [data[:n] for n in range(len(data))]
    zeros = [bytes(n) for n in range(100)]
    each = [data, *flipped, *cut, *zeros[1:]]  # no bytes are cut already
    assert len(set(map(checksum, each))) == len(each)


def test_large_arrays() -> None:
    data = np.random.default_rng(1).integers(0, 256, 1 << 20, dtype=np.uint8)
    found = Checksum()
    found.update(data)
    found.update(data[:0])
    assert found.digest() == checksum(*(data[at : at + 1000].tobytes() for at in range(0, len(data), 1000)))
    with pytest.raises(ValueError, match="contiguous"):
        Checksum().update(data[::2])
