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
SANITY = {
    0: 0xEF46DB3751D8E999,
    1: 0xE934A84ADB052768,
    4: 0x9136A0DCA57457EE,
    14: 0x8282DCC4994E35C8,
    222: 0xB641AE8CB691C174,
}
"""By length: those of xxHash's own sanity test (seed 0), in which each loop behind the stripes runs."""


def checksum(*pieces: bytes) -> bytes:
    found = Checksum()
    for piece in pieces:
        found.update(piece)
    return found.digest()


@pytest.mark.parametrize("data", PUBLISHED)
def test_it_is_the_published_one(data: bytes) -> None:
    assert checksum(data) == PUBLISHED[data].to_bytes(8, "little")


@pytest.mark.parametrize("length", SANITY)
def test_it_is_that_of_the_sanity_test(length: int) -> None:
    """Its bytes are the highest of numbers that begin with XXH32's first prime and are multiplied by XXH64's."""
    numbers = (2654435761 * pow(11400714785074694797, i, 1 << 64) % (1 << 64) for i in range(length))
    assert checksum(bytes(number >> 56 for number in numbers)) == SANITY[length].to_bytes(8, "little")


def test_every_length_gives_what_xxhash_gives() -> None:
    """One checksum of those of the first n bytes, n from 0 to 300, as xxhash 4.1.0 for Python has it."""
    data = bytes(range(256)) * 2
    together = checksum(*(checksum(data[:n]) for n in range(301)))
    assert together == (0x1F77AEDDD67B129D).to_bytes(8, "little")


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
