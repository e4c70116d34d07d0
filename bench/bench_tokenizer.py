"""How fast is text turned into tokens and back? 20 kB of words that look English, the demo's vocabulary and Llama 3's.

The twin is byte-level BPE in plain Python, which merges the pair of the lowest rank until none is left; the peer is
llama.cpp. Groups are questions; within one the rows compare. Run:
`python -m pytest bench/bench_tokenizer.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import regex

from bench.peer_llama import Llama
from ollama_engine import demo
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.tokenizer import Tokenizer, from_metadata
from tests.support.tiny import byte_characters

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SIZE = 20_000
# Of Llama 3's tokenizer, which the demo has too.
WORDS = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FILES = ["demo", "Llama 3"]
each_file = pytest.mark.parametrize("name", FILES)


def words(size: int) -> str:
    rng = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgk"
    weights = range(len(letters) * 2, 0, -2)
    vocabulary = ["".join(rng.choices(letters, weights, k=rng.randrange(1, 11))) for _ in range(3000)]
    return " ".join(rng.choices(vocabulary, k=size // 4))[:size]


TEXT = words(SIZE)


class PlainBPE:
    """The twin."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        self._ranks = {tuple(merge.split(" ", 1)): i for i, merge in enumerate(metadata["tokenizer.ggml.merges"])}
        self._characters = byte_characters()

    def encode(self, text: str) -> list[int]:
        return [token for word in WORDS.findall(text) for token in self._word(word)]

    def _word(self, word: str) -> list[int]:
        parts = [self._characters[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = ["".join(best)]
        return [self._ids[part] for part in parts]


def read(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    path = str(demo.path()) if name == "demo" else request.getfixturevalue("real_vocabulary")
    with GGUFFile(path) as file:
        return dict(file.metadata)


@pytest.fixture
def ours(request: pytest.FixtureRequest, name: str) -> Tokenizer:
    return from_metadata(read(request, name))


@each_file
def test_encode(benchmark: BenchmarkFixture, ours: Tokenizer, name: str) -> None:
    benchmark.group = f"encode 20 kB, {name}"
    benchmark(ours.encode, TEXT, add_special=False)


@pytest.mark.twin
@each_file
def test_encode_python(benchmark: BenchmarkFixture, request: pytest.FixtureRequest, ours: Tokenizer, name: str) -> None:
    benchmark.group = f"encode 20 kB, {name}"
    plain = PlainBPE(read(request, name))
    ids = benchmark.pedantic(plain.encode, args=(TEXT,), rounds=2)
    assert ids == ours.encode(TEXT, add_special=False)


@pytest.mark.peer
@each_file
def test_encode_peer(
    benchmark: BenchmarkFixture, request: pytest.FixtureRequest, llama: Llama, ours: Tokenizer, name: str
) -> None:
    benchmark.group = f"encode 20 kB, {name}"
    path = str(demo.path()) if name == "demo" else request.getfixturevalue("real_vocabulary")
    ids = np.empty(SIZE, np.int32)
    with llama.model(path, vocab_only=True) as model:
        n = benchmark(llama.tokenize, model, TEXT.encode(), ids)
    assert ids[:n].tolist() == ours.encode(TEXT, add_special=False)


@each_file
def test_decode(benchmark: BenchmarkFixture, ours: Tokenizer, name: str) -> None:
    benchmark.group = f"decode the tokens of 20 kB, {name}"
    benchmark(ours.decode, ours.encode(TEXT, add_special=False))


@pytest.mark.twin
@each_file
def test_decode_python(benchmark: BenchmarkFixture, request: pytest.FixtureRequest, ours: Tokenizer, name: str) -> None:
    benchmark.group = f"decode the tokens of 20 kB, {name}"
    bytes_of = {character: byte for byte, character in enumerate(byte_characters())}
    spelled = list(read(request, name)["tokenizer.ggml.tokens"])

    def decode(ids: list[int]) -> str:
        return bytes(bytes_of[c] for token in ids for c in spelled[token]).decode()

    assert benchmark(decode, ours.encode(TEXT, add_special=False)) == TEXT
