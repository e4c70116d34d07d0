"""The tiny models of the tests are sound GGUF files and hold what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.support.tiny import SPECIALS, byte_characters, tiny_vocabulary, write_tiny_llama

VARIANTS: list[dict[str, Any]] = [
    {},
    {"tied": True, "rope_freqs": True, "rope_base": 500000.0},
    {"head_dim": 32, "n_head_kv": 4, "biases": True, "sliding_window": 16},
    {"n_expert": 4, "dtype": "bf16"},
    {"dtype": "f16", "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"dtype": "q8_0", "n_layer": 1},
    {"dtype": "q4_0", "n_vocab": 1024},
    {"dtype": "q4_K", "n_embd": 256, "n_ff": 512, "n_layer": 1},
]


@pytest.mark.parametrize("overrides", VARIANTS, ids=lambda o: "-".join(o) or "default")
def test_variants_are_sound(tmp_path: Path, overrides: dict[str, Any]) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", **overrides)
    with GGUFFile(model.path) as file:
        assert file.architecture == "llama"
        assert {name: info.shape[::-1] for name, info in file.tensors.items()} == {
            name: weight.shape for name, weight in model.weights.items()
        }
        assert file.tensors["blk.0.attn_q.weight"].dtype == model.config.dtype
        assert file.tensors["blk.0.attn_norm.weight"].dtype == "f32"
        assert len(file.metadata["tokenizer.ggml.tokens"]) == model.config.n_vocab
    assert all(np.isfinite(weight).all() for weight in model.weights.values())


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    files = [write_tiny_llama(tmp_path / name, seed=seed).path for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    contents = [Path(path).read_bytes() for path in files]
    assert contents[0] == contents[1]
    assert contents[0] != contents[2]


def test_metadata_can_be_replaced_and_removed(tmp_path: Path) -> None:
    changes = {"llama.attention.head_count_kv": None, "general.name": "other", "llama.extra": 3}
    with GGUFFile(write_tiny_llama(tmp_path / "tiny.gguf", metadata=changes).path) as file:
        assert "llama.attention.head_count_kv" not in file.metadata
        assert (file.metadata["general.name"], file.metadata["llama.extra"]) == ("other", 3)


@pytest.mark.parametrize("n_vocab", [259, 320, 1024, 5000])
def test_the_vocabulary_is_unique_and_complete(n_vocab: int) -> None:
    tokens, merges = tiny_vocabulary(n_vocab)
    known = set(tokens)
    assert len(tokens) == len(known) == n_vocab
    assert tokens[:256] == byte_characters()
    assert tokens[-3:] == list(SPECIALS)
    for merge in merges:
        assert set(merge.split(" ")) <= known


def test_quantized_weights_are_near_what_was_asked_for(tmp_path: Path) -> None:
    sizes = {"n_embd": 256, "n_ff": 256, "n_layer": 1}
    exact = write_tiny_llama(tmp_path / "f32.gguf", **sizes).weights["blk.0.attn_q.weight"]
    for dtype, error in (("f16", 1e-3), ("q8_0", 0.02), ("q4_0", 0.2), ("q4_K", 0.2)):
        rounded = write_tiny_llama(tmp_path / "x.gguf", dtype=dtype, **sizes).weights["blk.0.attn_q.weight"]
        assert 0 < np.std(rounded - exact) < error * np.std(exact)
