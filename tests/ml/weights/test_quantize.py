"""Rows to element types and back, beside the gguf package, and what is refused."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantType
from numpy.typing import NDArray

from ollama_engine.errors import ShapeError
from ollama_engine.ml.graph.types import block_of, dtypes, type_id
from ollama_engine.ml.weights.quantize import TARGETS, are_valid, dequantize_rows, quantize_rows


def rows(n: int = 3, length: int = 512) -> NDArray[np.float32]:
    return np.random.default_rng(1).standard_normal((n, length), np.float32)


def room(dtype: str, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    block, size = block_of(dtype)
    return np.zeros(values.size // block * size, np.uint8)


@pytest.mark.parametrize("dtype", TARGETS)
def test_there_and_back(dtype: str) -> None:
    values = rows()
    out, back = room(dtype, values), np.empty(values.size, np.float32)
    quantize_rows(dtype, values, out)
    assert are_valid(dtype, out)
    if dtype == "f32":
        back = out.view(np.float32)
    else:
        dequantize_rows(dtype, out, back)
    np.testing.assert_array_equal(back, gguf.quants.dequantize(out, QuantType(type_id(dtype))).reshape(-1))
    bits = {"q2_K": 0.35, "q3_K": 0.2, "mxfp4": 0.2}.get(dtype, 0.13)
    assert np.sqrt(np.mean((back - values.reshape(-1)) ** 2)) < bits


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_the_gguf_package_makes_the_same(dtype: str) -> None:
    values = rows()
    out = room(dtype, values)
    quantize_rows(dtype, values, out)
    expected = gguf.quants.quantize(values, QuantType(type_id(dtype)))
    assert out.tobytes() == expected.tobytes()


def test_importance_moves_the_error_to_where_it_matters_less() -> None:
    values = rows()
    weights = np.where(np.arange(values.shape[1]) % 2, np.float32(100), np.float32(0.01))
    errors = []
    for importance in (None, weights):
        out, back = room("q3_K", values), np.empty(values.size, np.float32)
        quantize_rows("q3_K", values, out, importance)
        dequantize_rows("q3_K", out, back)
        errors.append(np.mean((back.reshape(values.shape) - values)[:, 1::2] ** 2))
    assert errors[1] < 0.8 * errors[0]


def test_nothing_is_no_error() -> None:
    quantize_rows("q4_0", np.empty((0, 32), np.float32), np.empty(0, np.uint8))
    dequantize_rows("q4_0", np.empty(0, np.uint8), np.empty(0, np.float32))
    assert are_valid("q4_0", np.empty(0, np.uint8))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_what_is_not_finite_is_found(dtype: str, bad: float, capfd: pytest.CaptureFixture[str]) -> None:
    values = rows()
    values[1, 7] = bad
    out = room(dtype, values)
    quantize_rows(dtype, values, out)
    assert not are_valid(dtype, out)
    capfd.readouterr()


def test_types_that_ggml_does_not_write_are_refused() -> None:
    for dtype in set(dtypes()) - set(TARGETS):
        with pytest.raises(ShapeError, match=f"rows cannot be written as {dtype}; possible: f32, "):
            quantize_rows(dtype, rows(), np.empty(1, np.uint8))
    with pytest.raises(ShapeError, match="unknown tensor type 'q4_k'"):
        quantize_rows("q4_k", rows(), np.empty(1, np.uint8))


def test_sizes_that_do_not_fit_are_refused() -> None:
    values = rows(2, 256)
    with pytest.raises(ShapeError, match="rows of q4_K come in blocks of 256, got rows of 255"):
        quantize_rows("q4_K", np.ascontiguousarray(values[:, 1:]), np.empty(288, np.uint8))
    with pytest.raises(ShapeError, match="2 rows of 256 q4_K take 288 bytes, got room for 287"):
        quantize_rows("q4_K", values, np.empty(287, np.uint8))
    with pytest.raises(ShapeError, match="rows of 256 want as many weights of importance, got 2"):
        quantize_rows("q4_K", values, np.empty(288, np.uint8), np.ones(2, np.float32))
    with pytest.raises(ShapeError, match="17 bytes do not hold 32 elements of q4_0"):
        dequantize_rows("q4_0", np.empty(17, np.uint8), np.empty(32, np.float32))
    with pytest.raises(ShapeError, match="18 bytes do not hold 31 elements of q4_0"):
        dequantize_rows("q4_0", np.empty(18, np.uint8), np.empty(31, np.float32))
    with pytest.raises(ShapeError, match="elements of i32 cannot be read as float32"):
        dequantize_rows("i32", np.empty(4, np.uint8), np.empty(1, np.float32))
