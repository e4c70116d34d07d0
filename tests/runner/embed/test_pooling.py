"""Pooling, cutting and normalizing, against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError, ModelFormatError, UnsupportedModelError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.runner.embed.pooling import check_pooling, finish, pool, rows_of
from ollama_engine.runner.load.pooling_type import model_pooling, read_pooling

ROWS = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("pooling", "rows", "expected"),
    [("mean", (0, 5), ROWS.mean(0)), ("cls", (0, 1), ROWS[0]), ("last", (4, 5), ROWS[4]), ("none", (0, 5), ROWS)],
)
def test_pool(pooling: Any, rows: tuple[int, int], expected: Any) -> None:
    assert rows_of(5, pooling) == rows
    found = pool(ROWS[slice(*rows)], pooling)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32
    assert not np.shares_memory(found, ROWS), "rows lie in memory that the next batch overwrites"


def test_vectors_are_cut_and_then_normalized() -> None:
    found = finish(ROWS, 3, normalize=True)
    np.testing.assert_allclose(found, ROWS[:, :3] / np.linalg.norm(ROWS[:, :3], axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(finish(ROWS, 3, normalize=False), ROWS[:, :3])
    np.testing.assert_array_equal(finish(ROWS[0], None, normalize=False), ROWS[0])
    assert finish(ROWS, None, normalize=True).dtype == np.float32


def test_a_vector_of_nothing_stays_one() -> None:
    assert not finish(np.zeros(4, np.float32), None, normalize=True).any()


@pytest.mark.parametrize(("number", "name"), list(enumerate(("none", "mean", "cls", "last", "rank"))))
def test_numbers_of_files(number: int, name: str) -> None:
    assert read_pooling(Metadata({"bert.pooling_type": number}, "bert")) == name


def test_files_that_say_nothing_or_nonsense() -> None:
    assert read_pooling(Metadata({}, "bert")) is None
    with pytest.raises(UnsupportedModelError, match=r"bert\.pooling_type is 5; known: 0 to 4"):
        read_pooling(Metadata({"bert.pooling_type": 5}, "bert"))
    with pytest.raises(ModelFormatError, match="pooling_type"):
        read_pooling(Metadata({"bert.pooling_type": "mean"}, "bert"))


def test_unknown_pooling() -> None:
    with pytest.raises(ConfigError, match="pooling is one of none, mean, cls, last, rank, got 'max'"):
        check_pooling("max")


@pytest.mark.parametrize("number", [-1, 7, "mean"])
def test_what_nobody_knows_concerns_encoders_only(number: Any) -> None:
    metadata = Metadata({"bert.pooling_type": number}, "bert")
    assert model_pooling(metadata, encoder=False) is None
    with pytest.raises(ModelFormatError, match="pooling_type"):
        model_pooling(metadata, encoder=True)


def test_of_no_tokens_there_are_no_rows() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        rows_of(0, "last")
