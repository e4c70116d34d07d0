"""A Llama folder becomes the GGUF that the same weights are written into by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ollama_engine.convert import convert_model
from tests.convert.folders import HfFolder
from tests.support.tiny import TinyLlama, write_tiny_llama

VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "tied": ({"tied": True}, {}),
    "biases": ({"biases": True}, {}),
    "wide-heads": ({"head_dim": 32}, {}),
    "experts": ({"n_expert": 4}, {}),
    "window": ({"sliding_window": 24}, {"architectures": ["MistralForCausalLM"]}),
    "llama3-factors": (
        {"rope_freqs": True},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 64}},
    ),
    "new-rope-form": ({"rope_base": 5e5}, {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}}),
    "linear-scaling": (
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    "yarn": (
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_context_length": 128, "yarn_beta_fast": 16.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                          "beta_fast": 16.0}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_tensors_and_metadata_are_those_written_by_hand(name: str, tmp_path: Path) -> None:
    tiny, config = VARIANTS[name]
    expected = gguf.GGUFReader(write_tiny_llama(tmp_path / "expected.gguf", **tiny).path)
    source = HfFolder(TinyLlama(**tiny), config=config).write(tmp_path / "source")
    convert_model(source, tmp_path / "made.gguf", "f32")
    made = gguf.GGUFReader(tmp_path / "made.gguf")

    tensors = {t.name: t for t in made.tensors}
    assert set(tensors) == {t.name for t in expected.tensors}
    for tensor in expected.tensors:
        assert tensors[tensor.name].tensor_type == tensor.tensor_type
        np.testing.assert_array_equal(tensors[tensor.name].data, tensor.data, err_msg=tensor.name)
    left_out = {"llama.attention.key_length", "llama.attention.value_length"} if "head_dim" not in tiny else set()
    for key, field in expected.fields.items():
        if key.startswith(("llama.", "tokenizer.")) and key not in left_out | {"tokenizer.ggml.eot_token_id"}:
            assert made.fields[key].contents() == field.contents(), key


@pytest.mark.parametrize("prefix", ["", "language_model.model.", "model.language_model."])
def test_prefixes_that_come_and_go(prefix: str, tmp_path: Path) -> None:
    def rename(name: str) -> str:
        return prefix + name.removeprefix("model.") if name.startswith("model.") else name

    plain = HfFolder().write(tmp_path / "plain")
    other = HfFolder(rename=rename).write(tmp_path / "other")
    convert_model(plain, tmp_path / "plain.gguf")
    convert_model(other, tmp_path / "other.gguf")
    a, b = (gguf.GGUFReader(tmp_path / name).tensors for name in ("plain.gguf", "other.gguf"))
    assert [(t.name, t.data.tobytes()) for t in a] == [(t.name, t.data.tobytes()) for t in b]
