"""Folders of other classes become files of a known architecture; numbers of layers become keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ollama_engine.convert import convert_model
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.models import families
from tests.models.families import YARN


def folder(path: Path, name: str, **settings: object) -> Path:
    """A case as it is published, with other settings in config.json."""
    case = families.case(name)
    golden = families.load(case)
    weights = golden.weights_of(case, "make_family_goldens")
    return families.write_folder(path, {**golden.config, **settings}, weights, case.dtype)


def test_internlm3_is_a_llama(tmp_path: Path) -> None:
    made = []
    for name in ("LlamaForCausalLM", "InternLM3ForCausalLM"):
        convert_model(
            folder(tmp_path / name, "llama-tied-biases", architectures=[name]), tmp_path / f"{name}.gguf", "f32"
        )
        with families.case("llama-tied-biases").engine(tmp_path / f"{name}.gguf") as engine:
            made.append(engine.logits([1, 2, 3]))
    np.testing.assert_array_equal(*made)


def test_numbers_of_layers_are_keys_as_llama_cpp_names_them(tmp_path: Path) -> None:
    source = folder(tmp_path / "source", "apertus")
    convert_model(source, tmp_path / "made.gguf", "f32")
    with GGUFFile(tmp_path / "made.gguf") as gguf:
        assert {key for key in gguf.metadata if "xielu" in key} == {
            f"xielu.{name}" for name in ("alpha_n", "alpha_p", "beta", "eps")
        }
        assert len(np.asarray(gguf.metadata["xielu.alpha_p"])) == 3


def test_a_layer_without_its_number_is_named(tmp_path: Path) -> None:
    case = families.case("apertus")
    golden = families.load(case)
    lost = "model.layers.1.mlp.act_fn.alpha_p"
    weights = {name: w for name, w in golden.weights_of(case, "make_family_goldens").items() if name != lost}
    source = families.write_folder(tmp_path / "source", golden.config, weights, "F32")
    with pytest.raises(ModelFormatError, match=f"{lost} is missing"):
        convert_model(source, tmp_path / "made.gguf", "f32")


def test_numbers_for_each_layer_that_are_the_same_are_one(tmp_path: Path) -> None:
    """Hunyuan A13B has lists of them."""
    lists = {"moe_intermediate_size": [96] * 3, "moe_topk": [3] * 3, "num_shared_expert": [1] * 3}
    for path, settings in (("one", {}), ("lists", lists)):
        convert_model(folder(tmp_path / path / "source", "hunyuan-moe", **settings), tmp_path / f"{path}.gguf", "f32")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "lists.gguf").read_bytes()


REFUSED = {
    "experts-by-groups": ("glm4moe", {"n_group": 2}, "n_group"),
    "experts-in-some-blocks": ("ernie4_5-moe", {"moe_layer_end_index": 1}, "moe_layer_end_index"),
    "layers-of-different-experts": ("hunyuan-moe", {"moe_topk": [1, 2, 3]}, "moe_topk"),
    "shared-experts-summed": ("cohere2moe", {"shared_expert_combination_strategy": "sum"}, "combination_strategy"),
    "factors-of-llama-3.1": ("mamba2", {"rope_scaling": {"rope_type": "llama3"}}, "llama3"),
    "a-ramp-that-is-not-rounded": ("qwen3", {"rope_parameters": {**YARN, "truncate": False}}, "truncate"),
    "a-window": ("smollm3", {"use_sliding_window": True}, "use_sliding_window"),
    "another-activation": ("arcee", {"hidden_act": "silu"}, "hidden_act"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_file_cannot_say_is_refused(name: str, tmp_path: Path) -> None:
    case, settings, named = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=named):
        convert_model(folder(tmp_path / "source", case, **settings), tmp_path / "made.gguf", "f32")
