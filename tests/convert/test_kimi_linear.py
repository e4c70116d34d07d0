"""Kimi Linear as it is published: the same file as from the form of transformers; what GGUF lacks is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.convert import convert_model
from ollama_engine.errors import UnsupportedModelError
from tests.convert.vocab.test_tiktoken import folder_files, ranks
from tests.models import families
from tests.support.tiny import Weights

CASE = families.case("kimi-linear-bf16")
RENAMED = ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim")


def published(config: dict[str, Any]) -> dict[str, Any]:
    """The config in the form of moonshotai/Kimi-Linear-48B-A3B-Instruct, which counts layers from 1."""
    types = config["layer_types"]
    linear = {
        "full_attn_layers": [i for i, kind in enumerate(types, 1) if kind == "full_attention"],
        "kda_layers": [i for i, kind in enumerate(types, 1) if kind == "linear_attention"],
        "head_dim": config["linear_head_dim"],
        "num_heads": config["linear_num_heads"],
        "short_conv_kernel_size": config["linear_conv_kernel_dim"],
    }
    return {key: value for key, value in config.items() if key not in RENAMED} | {
        "linear_attn_config": linear,
        "first_k_dense_replace": config["mlp_layer_types"].count("dense"),
        "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid",
        "mla_use_nope": True,
    }


def write(folder: Path, config: dict[str, Any], weights: Weights) -> Path:
    return families.write_folder(folder / "kimi", config, weights, CASE.dtype)


def test_published_form_becomes_the_same_file(tmp_path: Path) -> None:
    golden = families.load(CASE)
    weights = CASE.weights(golden.shapes)
    dense = {name for name in weights if ".block_sparse_moe." in name and name.endswith("_proj.weight")} - {
        name for name in weights if "shared_experts" in name
    }
    renamed = {name.replace("block_sparse_moe", "mlp") if name in dense else name: w for name, w in weights.items()}
    assert len(dense) == 6
    sources = {
        "transformers": write(tmp_path / "transformers", golden.config, weights),
        "published": write(tmp_path / "published", published(golden.config), renamed),
    }
    for name, source in sources.items():
        convert_model(source, tmp_path / f"{name}.gguf", "bf16")
    made = {name: (tmp_path / f"{name}.gguf").read_bytes() for name in sources}
    assert made["published"] == made["transformers"]


def test_the_published_tokenizer_is_read(tmp_path: Path) -> None:
    """The folder has a tiktoken.model and no tokenizer.json."""
    golden = families.load(CASE)
    source = write(tmp_path, published(golden.config), CASE.weights(golden.shapes))
    (source / "tokenizer.json").unlink()
    for name, content in folder_files(ranks()).items():
        (source / name).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    convert_model(source, tmp_path / "made.gguf", "bf16")
    with CASE.engine(tmp_path / "made.gguf") as engine:
        text = "the ring of the bell, 中文 1234"
        assert engine.detokenize(engine.tokenize(text)) == text
        assert np.isfinite(engine.logits(text)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func is 'softmax'"),
        ({"mla_use_nope": False}, "mla_use_nope is False"),
        ({"q_lora_rank": 16}, "q_lora_rank is 16"),
        ({"linear_num_heads": 8}, "as many heads"),
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, "blocks without experts follow others"),
    ],
)
def test_other_forms_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    golden = families.load(CASE)
    source = write(tmp_path, golden.config | changes, CASE.weights(golden.shapes))
    with pytest.raises(UnsupportedModelError, match=message):
        convert_model(source, tmp_path / "made.gguf", "f32")
