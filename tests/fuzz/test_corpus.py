"""Replays the corpus of each fuzz target, and damages it a little: inputs are taken or refused, nothing else."""

from __future__ import annotations

import random
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from tests.fuzz.mutants import CORPUS, inputs_of, mutants
from tests.fuzz.targets import NAMES
from tests.support.suite import scaled

LARGEST = 500_000
"""Bytes of all corpora."""
MUTANTS = scaled(200, quick=10)
"""Of each target."""
SEED = 20_260_101


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def target(name: str) -> ModuleType:
    return import_module(f"tests.fuzz.targets.{name}")


@pytest.fixture(scope="module")
def inputs(name: str) -> list[bytes]:
    return inputs_of(name)


def test_the_corpus_and_mutants_of_it_are_taken_or_refused(
    target: ModuleType, inputs: list[bytes], tmp_path: Path
) -> None:
    with target.opened(tmp_path) as run:
        taken = [run(data) for data in inputs]
        assert any(taken), "a target that takes nothing tests little"
        assert not all(taken), "what is refused is of the corpus, too"
        for number, data in enumerate(mutants(inputs, target.WORDS, random.Random(SEED), MUTANTS)):
            try:
                run(data)
            except BaseException:
                print(f"mutant {number} of seed {SEED}: {data!r}")
                raise


def test_the_corpora_are_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < LARGEST
