"""Files whose tensors or metadata do not fit raise ModelFormatError that says what was expected; none gets further."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import model_class
from ollama_engine.models.dialects import known_values
from tests.models.variants import CPU, QUICK_VARIANTS, VARIANTS, WRITERS, Variant, minimal
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama


@pytest.mark.parametrize("architecture", slow_except(WRITERS, "llama", "gpt-oss", "gemma3"))
def test_every_missing_or_misshapen_tensor_is_named(architecture: str, tmp_path: Path) -> None:
    with (
        GGUFFile(minimal(architecture).file(tmp_path)) as gguf,
        Backend(BackendParams(threads=1, gpu_layers=0)) as backend,
        Weights(backend, gguf) as weights,
        Storage(backend, 1) as storage,
    ):
        weights.load()
        model, metadata = model_class(architecture), known_values(gguf.metadata)
        wrong = storage.add("wrong", "f32", (3, 5, 7))
        storage.allocate(0)
        assert not model(metadata, weights).unused_weights
        for name, weight in weights.items():
            others = {n: w for n, w in weights.items() if n != name}
            if name != "output.weight":  # without it, the token embedding is used
                with pytest.raises(ModelFormatError, match=rf"no tensor.* {re.escape(name)}"):
                    model(metadata, others)
            with pytest.raises(ModelFormatError) as caught:
                model(metadata, {**others, name: wrong})
            if name != "token_embd.weight":  # what the vocabulary is measured by
                assert name in str(caught.value)
                assert str(list(weight.shape)) in str(caught.value)
                assert "[3, 5, 7]" in str(caught.value)


@pytest.mark.parametrize("variant", slow_except(VARIANTS, *QUICK_VARIANTS), ids=str)
def test_every_tensor_is_read(variant: Variant, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Engine(variant.file(tmp_path), num_ctx=64, **CPU):
        assert "not used" not in caplog.text


_BAD: list[tuple[dict[str, Any], str]] = [
    ({"attention.head_count": 0}, "head_count"),
    ({"attention.head_count": 3}, "head_count 3"),
    ({"attention.head_count_kv": 0}, "head_count_kv 0"),
    ({"attention.head_count_kv": 3}, "head_count_kv 3"),
    ({"attention.head_count_kv": 8}, "head_count_kv 8"),
    ({"attention.head_count": 2**31}, "q_size"),
    ({"attention.head_count": 4096, "attention.key_length": None, "attention.value_length": None}, "size of a head 0"),
    ({"attention.key_length": 0}, "size of a head 0"),
    ({"attention.key_length": 2**31, "attention.value_length": 2**31}, "q_size"),
    ({"attention.key_length": 7, "attention.value_length": 7}, "even"),
    ({"attention.key_length": 8}, "value_length"),
    ({"attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon"),
    ({"attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon"),
    ({"attention.layer_norm_rms_epsilon": -1.0}, "layer_norm_rms_epsilon"),
    ({"attention.scale": float("inf")}, "attention.scale"),
    ({"block_count": 0}, "block_count 0"),
    ({"block_count": 3}, "blk.2.attn_norm"),
    ({"block_count": 2**32 - 1}, "block_count 4294967295"),
    ({"block_count": "two"}, "block_count"),
    ({"block_count": None}, "block_count"),
    ({"context_length": 0}, "context_length 0"),
    ({"embedding_length": 0}, "embedding_length 0"),
    ({"embedding_length": 2**32 - 1}, "token_embd"),
    ({"feed_forward_length": 0}, "feed_forward_length 0"),
    ({"feed_forward_length": 2**32 - 1}, "4294967295"),
    ({"feed_forward_length": [96, 64]}, "feed_forward_length"),
    ({"expert_count": 4, "expert_used_count": 2}, "ffn_gate_inp"),
    ({"expert_count": 4, "expert_used_count": 0}, "expert_used_count"),
    ({"expert_count": 4, "expert_used_count": 5}, "expert_used_count"),
    ({"expert_count": 2**32 - 1, "expert_used_count": 2}, "ffn_gate_inp"),
    ({"rope.dimension_count": 0}, "even"),
    ({"rope.dimension_count": 7}, "even"),
    ({"rope.freq_base": 0.0}, "freq_base"),
    ({"rope.freq_base": 1.0}, "freq_base"),
    ({"rope.freq_base": -5.0}, "freq_base"),
    ({"rope.freq_base": float("nan")}, "freq_base"),
    ({"rope.scaling.factor": -2.0}, "factor"),
    ({"rope.scaling.factor": 1e-40}, "factor"),
    ({"rope.scaling.type": "yarn", "rope.scaling.factor": -2.0}, "factor"),
    ({"rope.scaling.type": "yarn", "rope.scaling.yarn_beta_fast": 0.0}, "beta"),
    ({"rope.scaling.type": "yarn", "rope.scaling.yarn_beta_slow": -1.0}, "beta"),
    ({"rope.scaling.type": "spiral"}, "spiral"),
    ({"rope.scaling.type": 7}, "rope.scaling.type"),
]


@pytest.mark.parametrize(("changes", "message"), _BAD, ids=lambda v: str(v) if isinstance(v, dict) else "")
def test_absurd_metadata(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    metadata = {f"llama.{key}": value for key, value in changes.items()}
    path = write_tiny_llama(tmp_path / "bad.gguf", metadata=metadata).path
    with pytest.raises(ModelFormatError, match=re.escape(message)):
        Engine(path, num_ctx=64, **CPU)


_ODD: list[dict[str, Any]] = [
    {"context_length": 2**32 - 1},
    {"rope.scaling.original_context_length": 2**32 - 1},
    {"rope.scaling.type": "yarn", "rope.scaling.factor": 1.0},
    {"rope.scaling.type": "none", "rope.scaling.factor": 8.0},
    {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0},
    {"attention.head_count_kv": [2, 2], "attention.head_count": [4, 4]},
    {"feed_forward_length": [96, 96]},
    {"rope.dimension_count": 4096},
    {"rope.dimension_count": 8},
    {"attention.sliding_window": 0},
    {"attention.sliding_window": 2**32 - 1},
    {"attention.sliding_window": 1},
    {"expert_count": 0, "expert_used_count": 0},
]  # fmt: skip


@pytest.mark.parametrize("changes", _ODD, ids=str)
def test_odd_metadata_that_real_files_may_carry(changes: dict[str, Any], tmp_path: Path) -> None:
    metadata = {f"llama.{key}": value for key, value in changes.items()}
    path = write_tiny_llama(tmp_path / "odd.gguf", metadata=metadata).path
    with Engine(path, num_ctx=64, **CPU) as engine:
        assert engine.logits([1, 2, 3]).shape == (3, 320)


def test_an_attention_scale_of_0_stands_for_the_usual_one(tmp_path: Path) -> None:
    logits = []
    for changes in ({}, {"llama.attention.scale": 0.0}):
        path = write_tiny_llama(tmp_path / "scale.gguf", metadata=changes).path
        with Engine(path, num_ctx=64, **CPU) as engine:
            logits.append(engine.logits([1, 2, 3]))
    np.testing.assert_array_equal(*logits)


def test_an_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "x.gguf", metadata={"general.architecture": "perceptron"}).path
    with pytest.raises(UnsupportedModelError, match=r"'perceptron'.*llama"):
        Engine(path)


_WRONG_TENSORS: list[tuple[dict[str, Any], str]] = [
    ({"blk.0.attn_norm.weight": np.ones(64, np.float16)}, "f16"),
    ({"blk.1.attn_q.bias": np.ones(64, np.float16)}, "f16"),
    ({"blk.1.attn_q.bias": np.ones(63, np.float32)}, "attn_q.bias"),
    ({"blk.1.attn_q.weight": np.ones((64, 64), np.int32)}, "i32"),
    ({"token_embd.weight": np.ones((320, 64), np.int32)}, "i32"),
    ({"rope_freqs.weight": np.ones(8, np.float16)}, "rope"),
    ({"rope_freqs.weight": np.ones(7, np.float32)}, "rope_freqs.weight"),
    ({"token_embd.weight": None, "output.weight": None}, "token_embd.weight"),
    ({"token_embd.weight": np.ones((320, 65), np.float32)}, "token_embd.weight"),
]


@pytest.mark.parametrize(
    ("tensors", "message"), _WRONG_TENSORS, ids=lambda v: "-".join(v) if isinstance(v, dict) else ""
)
def test_tensors_of_the_wrong_type_or_shape(tensors: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "bad.gguf", tensors=tensors).path
    with pytest.raises(ModelFormatError, match=re.escape(message)) as caught:
        Engine(path, num_ctx=64, **CPU)
    assert path in str(caught.value)


def test_tensors_that_no_one_reads_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiny_llama(tmp_path / "x.gguf", tensors={"extra.weight": np.ones(8, np.float32)}).path
    with Engine(path, num_ctx=64, **CPU) as engine:
        assert len(engine.generate([1], SamplingParams(max_tokens=1)).tokens) == 1
    assert "extra.weight" in caplog.text
