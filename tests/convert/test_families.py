"""The converters of the families add and refuse more than names say; tests/models compares what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ollama_engine.convert import convert_model
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from tests.convert.folders import write_json
from tests.models import families


def source(name: str, path: Path, changes: dict[str, Any], prefix: str = "") -> Path:
    """The folder of a case with another config; a value of None removes one. Tensors get a prefix."""
    case = families.case(name)
    golden = families.load(case)
    weights = {prefix + key: value for key, value in case.weights(golden.shapes).items()}
    if prefix:
        weights["vision_tower.patch.weight"] = np.ones((2, 2), np.float32)
    folder = families.write_folder(path, golden.config, weights, "F32")
    config = {key: value for key, value in {**golden.config, **changes}.items() if value is not None}
    write_json(folder / "config.json", config)
    return folder


def keys_of(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("qwen2", {"use_sliding_window": True, "layer_types": None, "max_window_layers": 1}, UnsupportedModelError,
     "use_sliding_window is on"),
    ("qwen3moe", {"mlp_only_layers": [0]}, UnsupportedModelError, "make some layers dense"),
    ("qwen3moe", {"decoder_sparse_step": 2}, UnsupportedModelError, "make some layers dense"),
    ("gemma3", {"final_logit_softcapping": 30.0}, UnsupportedModelError, "final_logit_softcapping is 30.0"),
    ("gemma3", {"use_bidirectional_attention": True}, UnsupportedModelError, "embedding model"),
    ("gemma3", {"layer_types": ["full_attention"]}, ModelFormatError, "layer_types is"),
    ("gemma3", {"layer_types": ["chunked"] * 3}, ModelFormatError, "layer_types is"),
    ("phi3-longrope-bf16", {"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}},
     ModelFormatError, "long_factor has 1 numbers, expected 16"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "kind", "message"), REFUSED)
def test_refusals(name: str, changes: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        convert_model(source(name, tmp_path / "source", changes), tmp_path / "made.gguf")
    assert not (tmp_path / "made.gguf").exists()


def test_gemma3_as_it_is_published(tmp_path: Path) -> None:
    """Bases at the top, prefixes of the class that sees images, and what transformers has defaults for left out.

    The part that reads images, which these weights do not have, is left out.
    """
    changes = {
        "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {"hidden_size": 1},
        "rope_parameters": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "layer_types": None,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rms_norm_eps": None, "max_position_embeddings": None,
        "_sliding_window_pattern": 6,
    }  # fmt: skip
    folder = source("gemma3", tmp_path / "source", changes, prefix="language_model.")
    convert_model(folder, tmp_path / "made.gguf", "f32", vision=False)
    keys = keys_of(tmp_path / "made.gguf")
    assert keys["gemma3.rope.freq_base"] == 1e6
    assert keys["gemma3.rope.freq_base_swa"] == 1e4
    assert keys["gemma3.rope.scaling.factor"] == 8.0
    assert keys["gemma3.context_length"] == 131072
    assert keys["gemma3.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-6)
    assert keys["gemma3.attention.sliding_window_pattern"] == [True] * 3


def test_phi3_without_a_window_says_0(tmp_path: Path) -> None:
    folder = source("phi3", tmp_path / "source", {"sliding_window": None})
    convert_model(folder, tmp_path / "made.gguf")
    assert keys_of(tmp_path / "made.gguf")["phi3.attention.sliding_window"] == 0


def test_command_r_tells_what_it_was_trained_for(tmp_path: Path) -> None:
    folder = source("command-r", tmp_path / "source", {"model_max_length": 131072})
    convert_model(folder, tmp_path / "made.gguf")
    keys = keys_of(tmp_path / "made.gguf")
    assert keys["command-r.context_length"] == 131072
    assert keys["command-r.rope.scaling.type"] == "none"
