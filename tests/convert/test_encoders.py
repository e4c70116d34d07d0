"""Keys that the converters of encoders write, and what they refuse; tests/models compares what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.convert import convert_model
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from tests.convert.folders import write_json
from tests.models import encoders
from tests.support.tiny import Weights


def source(name: str, path: Path, changes: dict[str, Any] | None = None, weights: Weights | None = None) -> Path:
    """The folder of a case with another config; a value of None removes one."""
    case = encoders.case(name)
    golden = encoders.load(case)
    config = {key: value for key, value in {**golden.config, **(changes or {})}.items() if value is not None}
    return case.write(path, config, weights or case.weights(golden.shapes))


def keys_of(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def converted(folder: Path, path: Path) -> dict[str, Any]:
    convert_model(folder, path, "f32")
    return keys_of(path)


def embedded(path: Path) -> np.ndarray[Any, Any]:
    with Engine(path, threads=1, gpu_layers=0) as engine:
        return engine.embed([[5, 6, 7], [8, 9]])


WRITTEN: list[tuple[str, dict[str, Any]]] = [
    ("bert", {"bert.context_length": 512, "bert.attention.causal": False, "bert.attention.head_count": 4,
              "bert.attention.layer_norm_epsilon": pytest.approx(1e-12), "tokenizer.ggml.token_type_count": 2,
              "tokenizer.ggml.model": "bert", "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 3,
              "tokenizer.ggml.seperator_token_id": 3, "bert.pooling_type": None,
              "bert.classifier.output_labels": None}),
    ("bert-ranker", {"bert.pooling_type": 4, "bert.classifier.output_labels": ["LABEL_0"]}),
    ("nomic-bert", {"nomic-bert.rope.freq_base": 1000.0, "nomic-bert.attention.causal": False}),
    ("modern-bert", {"modern-bert.attention.sliding_window": 24, "modern-bert.rope.freq_base": 160000.0,
                     "modern-bert.rope.freq_base_swa": 10000.0, "modern-bert.rope.scaling.type": "none",
                     "modern-bert.attention.sliding_window_pattern": [False, True, True, False],
                     "modern-bert.hidden_activation": "gelu", "tokenizer.ggml.pre": "modern-bert",
                     "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}),
    ("modern-bert-ranker", {"modern-bert.pooling_type": 4, "modern-bert.classifier.pooling_type": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), WRITTEN)
def test_keys(name: str, expected: dict[str, Any], tmp_path: Path) -> None:
    keys = converted(source(name, tmp_path / "source"), tmp_path / "made.gguf")
    assert {key: keys.get(key) for key in expected} == {**expected, **{
        key: encoders.load(encoders.case(name)).config["max_position_embeddings"]
        for key in expected if key.endswith("context_length")
    }}  # fmt: skip


def test_sentence_transformers(tmp_path: Path) -> None:
    folder = source("bert", tmp_path / "source")
    write_json(folder / "modules.json", [{"type": "sentence_transformers.models.Transformer", "path": ""},
                                         {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}],
               )  # fmt: skip
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_cls_token": True})
    assert converted(folder, tmp_path / "made.gguf")["bert.pooling_type"] == 2


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("bert", {"hidden_act": "relu"}, UnsupportedModelError, "hidden_act is 'relu'; supported: 'gelu'"),
    ("bert", {"position_embedding_type": "relative_key"}, UnsupportedModelError, "position_embedding_type"),
    ("bert", {"hidden_size": None}, ModelFormatError, "no hidden_size or n_embd"),
    ("nomic-bert", {"prenorm": True}, UnsupportedModelError, "prenorm is True"),
    ("nomic-bert-moe", {"num_shared_experts": 1}, UnsupportedModelError, "num_shared_experts is 1"),
    ("nomic-bert", {"rotary_emb_interleaved": True}, UnsupportedModelError, "rotary_emb_interleaved"),
    ("modern-bert", {"hidden_activation": "relu"}, UnsupportedModelError, "hidden_activation is 'relu'"),
    ("modern-bert", {"layer_types": ["full_attention"]}, ModelFormatError, "layer_types is"),
    ("modern-bert-ranker", {"classifier_activation": "tanh"}, UnsupportedModelError, "classifier_activation"),
    ("modern-bert-ranker", {"classifier_pooling": "max"}, UnsupportedModelError, "classifier_pooling is 'max'"),
]


@pytest.mark.parametrize(("name", "changes", "kind", "message"), REFUSED)
def test_refusals(name: str, changes: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        convert_model(source(name, tmp_path / "source", changes), tmp_path / "made.gguf")
    assert not (tmp_path / "made.gguf").exists()


def test_old_names_of_bert(tmp_path: Path) -> None:
    """A prefix, gamma and beta, and heads that embeddings do not need."""
    case = encoders.case("bert")
    weights = case.weights(encoders.load(case).shapes)

    def old(name: str) -> str:
        part = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        return f"bert.{part}"

    unused = {"bert.embeddings.position_ids": (1, 4), "cls.predictions.bias": (3,), "bert.pooler.dense.bias": (64,)}
    renamed = {old(name): values for name, values in weights.items() if "pooler" not in name}
    for name, shape in unused.items():
        renamed[name] = np.zeros(shape, np.float32)
    folder = source("bert", tmp_path / "old", {"architectures": ["BertForMaskedLM"]}, renamed)
    convert_model(folder, tmp_path / "old.gguf", "f32")
    convert_model(source("bert", tmp_path / "new"), tmp_path / "new.gguf", "f32")
    np.testing.assert_array_equal(embedded(tmp_path / "old.gguf"), embedded(tmp_path / "new.gguf"))


def test_nomic_as_it_is_published(tmp_path: Path) -> None:
    """GPT-2's names in the config, and a context that only a scaled rotation reaches."""
    new = encoders.load(encoders.case("nomic-bert")).config
    names = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
             "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps"}  # fmt: skip
    changes = {
        **{old: new[name] for old, name in names.items()}, **dict.fromkeys(names.values()),
        "n_positions": 8192, "max_position_embeddings": None, "rope_parameters": None, "hidden_act": None,
        "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "prenorm": False,
        "activation_function": "swiglu", "head_dim": None,
    }  # fmt: skip
    keys = converted(source("nomic-bert", tmp_path / "old", changes), tmp_path / "old.gguf")
    assert keys["nomic-bert.context_length"] == 2048
    assert keys["nomic-bert.rope.freq_base"] == 1000.0
    convert_model(source("nomic-bert", tmp_path / "new"), tmp_path / "new.gguf", "f32")
    np.testing.assert_array_equal(embedded(tmp_path / "old.gguf"), embedded(tmp_path / "new.gguf"))


def test_modern_bert_as_it_is_published(tmp_path: Path) -> None:
    """Bases and the order of layers at the top of the config."""
    changes = {"rope_parameters": None, "layer_types": None, "global_attn_every_n_layers": 3, "norm_eps": None,
               "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}  # fmt: skip
    convert_model(source("modern-bert", tmp_path / "old", changes), tmp_path / "old.gguf", "f32")
    convert_model(source("modern-bert", tmp_path / "new"), tmp_path / "new.gguf", "f32")
    np.testing.assert_array_equal(embedded(tmp_path / "old.gguf"), embedded(tmp_path / "new.gguf"))
