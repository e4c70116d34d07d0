"""Replays the corpus of each fuzz target, and damages it a little: inputs are taken or refused, nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.fuzz.targets import NAMES
from tests.suite import scaled

CORPUS = Path(__file__).parent / "corpus"
LARGEST = 500_000
"""Bytes of all of it."""
MUTANTS = scaled(300, quick=20)
"""Of each target."""


@pytest.fixture(scope="module", params=NAMES)
def target(request: pytest.FixtureRequest) -> ModuleType:
    return import_module(f"tests.fuzz.targets.{request.param}")


@pytest.fixture(scope="module")
def inputs(target: ModuleType) -> list[bytes]:
    name = target.__name__.rpartition(".")[2]
    return [*target.seeds(), *(path.read_bytes() for path in sorted((CORPUS / name).iterdir()))]


def test_the_corpus_is_taken_or_refused(target: ModuleType, inputs: list[bytes], tmp_path: Path) -> None:
    with target.opened(tmp_path) as run:
        taken = [run(data) for data in inputs]
    assert any(taken), "a target that takes nothing tests little"
    assert not all(taken), "what is refused is of the corpus, too"


def test_mutants_are_taken_or_refused(target: ModuleType, inputs: list[bytes], tmp_path: Path) -> None:
    with target.opened(tmp_path) as run:
        for data in _mutants(inputs, random.Random(20_260_101), target.WORDS):
            try:
                run(data)
            except BaseException:
                print(f"the input was {data!r}")
                raise


def _mutants(inputs: list[bytes], rng: random.Random, words: tuple[bytes, ...]) -> Iterator[bytes]:
    for _ in range(MUTANTS):
        data = bytearray(rng.choice(inputs))
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.choice((0, 1, 4))] = rng.choice((b"", rng.randbytes(1), rng.choice(words)))
        yield bytes(data)


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < LARGEST
