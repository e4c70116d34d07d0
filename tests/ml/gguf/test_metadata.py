"""Typed getters: every way that converters store a value is understood, everything else raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata, MetadataValue


def stored(value: MetadataValue) -> Metadata:
    return Metadata({"general.architecture": "llama", "llama.key": value})


def u32(*values: int) -> MetadataValue:
    return np.array(values, dtype=np.uint32)


ACCEPTED = [
    ("u32", 7, 7), ("u32", 7.0, 7), ("u32", True, 1), ("u32", u32(5, 5, 5), 5), ("u32", 2**32 - 1, 2**32 - 1),
    ("u32", np.array([3.0], dtype=np.float32), 3), ("f32", 0.5, 0.5), ("f32", 3, 3.0),
    ("f32", np.array([0.5, 0.5]), 0.5), ("bool", True, True), ("bool", 0, False), ("bool", np.array([True]), True),
    ("str", "text", "text"), ("list", ["a"], ["a"]), ("list", u32(1, 2), [1, 2]),
    ("list", np.array([True, False]), [True, False]), ("list", u32(), []),
]  # fmt: skip


@pytest.mark.parametrize(("getter", "value", "expected"), ACCEPTED)
def test_accepted(getter: str, value: MetadataValue, expected: object) -> None:
    found = getattr(stored(value), getter)("key")
    assert found == expected
    assert type(found) is type(expected)


REFUSED = [
    ("u32", -1), ("u32", 2**32), ("u32", 0.5), ("u32", "7"), ("u32", u32(1, 2)), ("u32", u32()), ("u32", ["a"]),
    ("f32", "x"), ("f32", True), ("f32", float("nan")), ("f32", float("inf")), ("bool", 2),
    ("bool", "true"), ("bool", 1.0), ("str", 3), ("str", ["a"]), ("list", 3), ("list", "abc"),
]  # fmt: skip


@pytest.mark.parametrize(("getter", "value"), REFUSED)
def test_refused_even_with_a_default(getter: str, value: MetadataValue) -> None:
    with pytest.raises(ModelFormatError, match=r"metadata key 'llama\.key' holds .*, expected "):
        getattr(stored(value), getter)("key", None)


PER_LAYER: list[tuple[str, MetadataValue, list[Any]]] = [
    ("u32s", 8, [8, 8, 8]), ("u32s", u32(1, 2, 3), [1, 2, 3]), ("u32s", True, [1, 1, 1]),
    ("f32s", 1, [1.0, 1.0, 1.0]), ("f32s", np.array([0.5, 1.5, 2.5], dtype=np.float32), [0.5, 1.5, 2.5]),
    ("bools", np.array([True, False, True]), [True, False, True]), ("bools", u32(0, 1, 0), [False, True, False]),
]  # fmt: skip


@pytest.mark.parametrize(("getter", "value", "expected"), PER_LAYER)
def test_one_value_per_layer(getter: str, value: MetadataValue, expected: list[Any]) -> None:
    found = getattr(stored(value), getter)("key", 3)
    assert found == expected
    assert [type(item) for item in found] == [type(item) for item in expected]


@pytest.mark.parametrize("value", [u32(1, 2), u32(1, 2, 3, 4), u32(), "x", ["a", "b", "c"], np.array([0.5, 1.0, 2.0])])
def test_per_layer_values_of_another_kind(value: MetadataValue) -> None:
    with pytest.raises(ModelFormatError, match="expected 3 unsigned 32-bit integers"):
        stored(value).u32s("key", 3)


@pytest.mark.parametrize("getter", ["u32", "f32", "bool", "str", "list"])
def test_absent(getter: str) -> None:
    metadata = stored(1)
    assert getattr(metadata, getter)("absent", None) is None
    with pytest.raises(ModelFormatError, match=r"no key 'llama\.absent' \(expected "):
        getattr(metadata, getter)("absent")


def test_absent_per_layer() -> None:
    assert stored(1).u32s("absent", 2, [4, 4]) == [4, 4]
    with pytest.raises(ModelFormatError, match=r"expected 2 finite numbers\)"):
        stored(1).f32s("absent", 2)


def test_prefixes() -> None:
    values: dict[str, MetadataValue] = {"general.name": "n", "tokenizer.ggml.model": "gpt2", "qwen2.block_count": 3}
    metadata = Metadata(values, "qwen2")
    assert (metadata.str("general.name"), metadata.str("tokenizer.ggml.model")) == ("n", "gpt2")
    assert metadata.u32("block_count") == 3
    assert "block_count" in metadata
    assert "general.name" in metadata
    assert "context_length" not in metadata
    assert 3 not in metadata


@pytest.mark.parametrize("values", [{}, {"general.architecture": 3}, {"general.architecture": ""}])
def test_no_architecture(values: dict[str, MetadataValue]) -> None:
    with pytest.raises(ModelFormatError, match=r"general\.architecture"):
        Metadata(values)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(ModelFormatError, match=r"holds 'x{50,90}\.\.\. \(str\)"):
        stored("x" * 1000).u32("key")
    with pytest.raises(ModelFormatError, match=r"an array of 1000 int64 with \[  0   1   2 \.\.\. 997 998 999\]"):
        stored(np.arange(1000)).u32("key")
