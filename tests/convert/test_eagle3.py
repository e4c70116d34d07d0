"""EAGLE-3 heads: what their files say, which blocks are read where config.json does not say, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.convert import convert_model
from ollama_engine.errors import ConfigError, ModelFormatError, UnsupportedModelError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.models import eagle_heads, families
from tests.models.eagle_heads import N_DRAFT
from tests.support.tiny import write_tiny_llama

HEAD = next(case for case in eagle_heads.cases() if case.name == "eagle3-llama")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return families.converted(HEAD.family, tmp_path_factory.mktemp("target"))


def convert(folder: Path, target: Path | None, **config: Any) -> Path:
    """The file of the head, with these values in its config.json, where None removes one."""
    golden = eagle_heads.load(HEAD)
    values = {**golden.config, **config}
    weights = golden.weights_of(HEAD, "make_eagle_goldens")
    kept = {name: value for name, value in values.items() if value is not None}
    eagle_heads.published(HEAD, kept, weights, folder / "head")
    convert_model(folder / "head", folder / "head.gguf", "f32", target_model=target)
    return folder / "head.gguf"


def test_its_keys_and_names_are_llama_cpp_s(target: Path, tmp_path: Path) -> None:
    with GGUFFile(convert(tmp_path, target)) as file, GGUFFile(target) as model:
        keys = {name.removeprefix("eagle3."): value for name, value in file.metadata.items() if "eagle3." in name}
        tokenizers = [{k: v for k, v in each.metadata.items() if "tokenizer.ggml" in k} for each in (file, model)]
        names = set(file.tensors)
        offsets = file.tensors["d2t"]
    assert str(tokenizers[0]) == str(tokenizers[1])
    assert len(tokenizers[0]) > 5
    assert np.array_equal(keys["target_layers"], [1, 2, 2])
    assert (keys["target_hidden_size"], keys["norm_before_residual"], keys["norm_before_fc"]) == (64, True, False)
    assert (offsets.dtype, offsets.shape[0]) == ("i64", N_DRAFT)
    block = {"attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up"}
    assert names == {
        "d2t", "fc.weight", "output_norm.weight", "output.weight", "blk.0.ffn_down.weight",
        *(f"blk.0.{name}.weight" for name in block),
    }  # fmt: skip


def test_blocks_that_all_training_code_reads_are_the_default(tmp_path: Path) -> None:
    deep = tmp_path / "deep.gguf"
    write_tiny_llama(deep, n_layer=8, n_embd=64)
    with GGUFFile(convert(tmp_path, deep, eagle_aux_hidden_state_layer_ids=None)) as file:
        assert np.array_equal(file.metadata["eagle3.target_layers"], [2, 4, 5])


def test_a_head_wants_its_model_and_others_none(target: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"an EAGLE-3 head.* name that model's GGUF file: target_model"):
        convert(tmp_path, None)
    case = families.case("llama")
    golden = families.load(case)
    weights = golden.weights_of(case, "make_family_goldens")
    source = families.write_folder(tmp_path / "llama", golden.config, weights, "F32")
    with pytest.raises(ConfigError, match=r"target_model is for EAGLE-3 heads, and .* is of llama"):
        convert_model(source, tmp_path / "llama.gguf", "f32", target_model=target)
    assert not list(tmp_path.glob("*.gguf"))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"fc_norm": True}, r"missing from the checkpoint: fc_norm\.0\.weight"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}, "expected numbers of the model's 3 blocks"),
        ({"target_hidden_size": 32}, r"fc.weight .* does not fit"),
    ],
)
def test_what_a_file_cannot_say_is_refused(target: Path, tmp_path: Path, config: dict[str, Any], expected: str) -> None:
    with pytest.raises((UnsupportedModelError, ModelFormatError), match=expected):
        convert(tmp_path, target, **config)


def test_a_head_for_another_model_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    write_tiny_llama(other, n_layer=3, n_embd=32)
    expected = r"fc.weight .* does not fit .*; is the head for another model than the one that is named\?"
    with pytest.raises(ModelFormatError, match=expected):
        convert(tmp_path, other)
    assert not (tmp_path / "head.gguf").exists()


def test_tokens_that_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    small = tmp_path / "small.gguf"
    write_tiny_llama(small, n_layer=3, n_embd=64, n_vocab=300)
    with pytest.raises(ModelFormatError, match=r"d2t names tokens from \d+ to 3\d\d, and the model has 300"):
        convert(tmp_path, small)
    assert not (tmp_path / "head.gguf").exists()
