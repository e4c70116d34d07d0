"""bench/make_model.py writes sound files, with the types of llama.cpp's presets and values of the promised size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from bench.make_model import tensor_types, vocabulary, write_model
from bench.model_shapes import PRESETS, SHAPES, Shape
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.support.suite import slow_except

SMALL = Shape(
    name="small", n_layer=8, n_embd=256, n_ff=512, n_head=4, n_head_kv=2, head_dim=64, n_vocab=600, n_ctx=512,
    rope_base=10000.0, norm_eps=1e-5, bos=590, eos=591, n_special=10, qkv_bias=True, rope_factor=8.0,
)  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("n_embd", slow_except([256, 128], 256))
def test_values(tmp_path: Path, preset: str, n_embd: int) -> None:
    path = tmp_path / "small.gguf"
    write_model(str(path), replace(SMALL, n_embd=n_embd), preset)
    with GGUFFile(path) as file:
        content = path.read_bytes()
        for info in file.tensors.values():
            data = np.frombuffer(content[info.offset : info.offset + info.nbytes], np.uint8)
            values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[info.dtype.upper()])
            assert np.isfinite(values).all()
            if len(info.shape) == 2:
                assert values.std() == pytest.approx(info.shape[0] ** -0.5, rel=0.1)
                assert abs(values.mean()) < 0.2 * values.std()
        assert file.tensors["rope_freqs.weight"].shape == (32,)
        assert len(file.metadata["tokenizer.ggml.tokens"]) == SMALL.n_vocab


# What `llama-quantize --dry-run` said about a file of this shape.
MORE_BITS = {"llama-1b": {0, 1, 4, 7, 10, 13, 14, 15}, "qwen-0.5b": {0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23}}
TYPES = [
    ("llama-1b", "q4_k_m", "token_embd", "Q6_K"), ("llama-1b", "q4_k_m", "blk.0.attn_q", "Q4_K"),
    ("llama-1b", "q4_0", "token_embd", "Q6_K"), ("llama-1b", "q4_0", "blk.0.ffn_down", "Q4_0"),
    ("llama-1b", "q8_0", "token_embd", "Q8_0"), ("llama-1b", "bf16", "token_embd", "BF16"),
    ("llama-1b", "q8_0", "blk.0.attn_norm", "F32"), ("qwen-0.5b", "q4_0", "token_embd", "Q8_0"),
    ("qwen-0.5b", "q4_k_m", "blk.0.attn_q", "Q5_0"), ("qwen-0.5b", "q4_k_m", "blk.3.ffn_down", "Q4_K"),
    ("gemma-1b", "q4_k_m", "blk.0.attn_q", "Q5_0"), ("gemma-1b", "q4_k_m", "blk.0.attn_v", "Q8_0"),
    ("gemma-1b", "q4_k_m", "blk.0.attn_output", "Q4_K"), ("gemma-1b", "q4_k_m", "token_embd", "Q8_0"),
    ("llama-1b", "q3_k_m", "blk.0.attn_output", "Q4_K"), ("llama-1b", "iq4_xs", "blk.0.ffn_down", "Q5_K"),
    ("llama-1b", "q2_k", "blk.9.attn_v", "Q4_K"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "preset", "name", "expected"), TYPES)
def test_types(shape: str, preset: str, name: str, expected: str) -> None:
    assert tensor_types(preset, SHAPES[shape])[f"{name}.weight"].name == expected


@pytest.mark.parametrize("shape", MORE_BITS)
def test_layers_with_more_bits(shape: str) -> None:
    kinds = tensor_types("q4_k_m", SHAPES[shape])
    found = {i for i in range(SHAPES[shape].n_layer) if kinds[f"blk.{i}.ffn_down.weight"].name == "Q6_K"}
    assert found == MORE_BITS[shape]


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_model(str(tmp_path / name), SMALL, "q4_0", seed=seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_vocabularies_are_unique() -> None:
    for shape in SHAPES.values():
        tokens, merges = vocabulary(shape.n_text_tokens)
        assert len(tokens) == len(set(tokens)) == shape.n_text_tokens
        assert {merge.replace(" ", "") for merge in merges} <= set(tokens)
        assert shape.n_text_tokens <= shape.bos < shape.eos < shape.n_vocab
