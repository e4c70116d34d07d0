"""The two maps of latent attention that are made of one: of quantized weights, too."""

from __future__ import annotations

import numpy as np
import pytest

from ollama_engine.ml.gguf.gguf_file import TensorInfo
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.weights.latent_maps import latent_maps
from ollama_engine.ml.weights.quantize import dequantize_rows, quantize_rows

HEADS, OWN, VALUE, LATENT = 3, 5, 7, 64
VALUES = {"general.architecture": "deepseek2", "deepseek2.attention.head_count": HEADS}
OUTPUT = TensorInfo("blk.0.attn_output.weight", "f32", (HEADS * VALUE, 16), 0, 0, 0)


def source(dtype: str, rows: int = HEADS * (OWN + VALUE)) -> TensorInfo:
    elements, nbytes = block_of(dtype)
    return TensorInfo("blk.0.attn_kv_b.weight", dtype, (LATENT, rows), 0, LATENT * rows // elements * nbytes, 0)


@pytest.mark.parametrize("dtype", ["f32", "q8_0", "q4_0"])
def test_both_hold_the_same_numbers(dtype: str) -> None:
    of = source(dtype)
    given = np.random.default_rng(0).standard_normal((HEADS, OWN + VALUE, LATENT)).astype(np.float32)
    data = np.empty(of.nbytes, dtype=np.uint8)
    if dtype == "f32":
        data[:] = given.reshape(-1).view(np.uint8)
    else:
        quantize_rows(dtype, given.reshape(-1, LATENT), data)
        dequantize_rows(dtype, data, given.reshape(-1))
    made = latent_maps(VALUES, {of.name: of, OUTPUT.name: OUTPUT})
    keys, values = made["blk.0.attn_k_b.weight"], made["blk.0.attn_v_b.weight"]
    assert (keys.info.shape, keys.info.dtype) == ((OWN, LATENT, HEADS), "f32")
    assert (values.info.shape, values.info.dtype) == ((LATENT, VALUE, HEADS), dtype)
    raw = keys.made(data)
    assert len(raw) == keys.info.nbytes
    assert np.array_equal(raw.view(np.float32).reshape(HEADS, LATENT, OWN), given[:, :OWN].swapaxes(1, 2))
    raw = values.made(data)
    assert len(raw) == values.info.nbytes
    numbers = np.empty(HEADS * VALUE * LATENT, dtype=np.float32)
    if dtype == "f32":
        numbers[:] = raw.view(np.float32)
    else:
        dequantize_rows(dtype, raw, numbers)
    assert np.array_equal(numbers.reshape(HEADS, VALUE, LATENT), given[:, OWN:])


def test_shapes_that_do_not_fit_are_left_to_the_model() -> None:
    for infos in ([source("f32")], [source("f32", 10), OUTPUT], [OUTPUT]):
        assert latent_maps(VALUES, {info.name: info for info in infos}) == {}
    assert latent_maps({}, {i.name: i for i in (source("f32"), OUTPUT)}) == {}
