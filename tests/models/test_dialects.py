"""Files of Ollama's converters, and others that differ in names, compute what the same model computes under ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.errors import ModelFormatError
from ollama_engine.models import known_names, known_values
from tests.models import families

Tensors = Mapping[str, NDArray[np.float32]]
SKIPPED = ("GGUF.", "general.architecture", "general.alignment")


@dataclass(frozen=True)
class Theirs:
    """A case of `families` as another converter writes it. A key's value of None leaves it out."""

    case: str
    architecture: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Known name -> their name, or None; both below the architecture's."""
    added: Mapping[str, Any] = field(default_factory=dict)
    rename: Callable[[str], str] = str
    """The known name of a tensor -> their name."""
    change: Callable[[Tensors], Tensors] = dict
    """What else they do to the tensors, which are f32."""


def rewrite(source: Path, target: Path, theirs: Theirs) -> None:
    reader = gguf.GGUFReader(source)
    known = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), theirs.architecture)
    for key, entry in reader.fields.items():
        name = key.removeprefix(f"{known}.")
        renamed = theirs.keys.get(name, name)
        if not key.startswith(SKIPPED) and renamed is not None:
            full = key if name == key else f"{theirs.architecture}.{renamed}"
            writer.add_key_value(full, entry.contents(), *entry.types[:2])
    for name, value in theirs.added.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(f"{theirs.architecture}.{name}", value)
    for name, data in theirs.change({tensor.name: tensor.data for tensor in reader.tensors}).items():
        writer.add_tensor(theirs.rename(name), data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gpt_oss_name(name: str) -> str:
    name = name.replace("attn_output", "attn_out").replace("attn_sinks.weight", "attn_sinks")
    return name.replace("post_attention_norm", "ffn_norm")


def gemma4_name(name: str) -> str:
    names = {
        "post_attention_norm": "attn_post_norm", "ffn_norm": "ffn_pre_norm",
        "ffn_down_exps.scale": "ffn_gate_inp.per_expert_scale", "layer_output_scale.weight": "layer_scalar",
    }  # fmt: skip
    return re.sub("|".join(map(re.escape, names)), lambda known: names[known[0]], name)


def fuse_experts(tensors: Tensors) -> Tensors:
    """Gate and up projections of experts as halves of one matrix each."""
    return {
        name.replace("gate_exps", "gate_up_exps"):
            np.concatenate((data, tensors[name.replace("_gate_", "_up_")]), axis=1) if "gate_exps" in name else data
        for name, data in tensors.items() if "ffn_up_exps" not in name
    }  # fmt: skip


YARN = {f"rope.scaling.yarn_{name}": f"rope.scaling.{name}" for name in ("beta_fast", "beta_slow")}
CASES = {
    "gptoss": Theirs("gpt-oss", "gptoss", {"rope.scaling.type": None, "expert_feed_forward_length": None,
                                           "attention.sliding_window_pattern": None, **YARN}, rename=gpt_oss_name),
    "olmo3": Theirs("olmo3-bf16", "olmo3", {**YARN, "rope.scaling.yarn_attn_factor": "rope.scaling.attn_factor"}),
    "gemma3": Theirs("gemma3", "gemma3", {"rope.freq_base_swa": "rope.local.freq_base",
                                          "rope.freq_base": "rope.global.freq_base"}),
    "gemma3-without-what-is-known": Theirs("gemma3", "gemma3", {
        "rope.freq_base_swa": None, "rope.freq_base": None, "attention.layer_norm_rms_epsilon": None,
    }),
    "gemma4": Theirs("gemma4-experts", "gemma4", {"rope.freq_base_swa": "rope.local.freq_base",
                                                  "attention.head_count_kv": None}, rename=gemma4_name,
                     added={"attention.head_count_kv": 2, "attention.global_head_count_kv": 1}),
    "gemma4-of-llama.cpp": Theirs("gemma4-experts", "gemma4", change=fuse_experts),
    "mistral3": Theirs("mistral3-bf16", "mistral3", added={"rope.scaling.type": "", "rope.scaling.factor": 0.0,
                                                           "rope.scaling.beta_fast": 0.0}),
    "qwen2vl": Theirs("qwen25vl", "qwen2vl", {"rope.mrope_section": "rope.dimension_sections"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_same_logits(name: str, tmp_path: Path) -> None:
    theirs = CASES[name]
    case = families.case(theirs.case)
    ours = families.converted(case, tmp_path, vision=False)
    rewrite(ours, tmp_path / "theirs.gguf", theirs)
    with case.engine(ours) as a, case.engine(tmp_path / "theirs.gguf") as b:
        assert b.info.architecture == theirs.architecture
        np.testing.assert_array_equal(a.logits(case.prompt), b.logits(case.prompt))


# -- values alone ------------------------------------------------------------------------------------------------------

LARGE = {"general.architecture": "gemma3", "gemma3.block_count": 34}
STRETCHED: dict[str, tuple[dict[str, Any], float | None]] = {
    "early": ({"gemma3.rope.global.freq_base": 1e6}, 8.0),
    "sees-images": ({"gemma3.vision.block_count": 27}, 8.0),
    "says-it": ({"gemma3.rope.local.freq_base": 1e4, "gemma3.rope.scaling.factor": 4.0}, 4.0),
    "ours": ({"gemma3.vision.block_count": 27, "gemma3.rope.freq_base_swa": 1e4}, None),
    "llama.cpp's": ({"gemma3.rope.freq_base": 1e6}, None),
    "small": ({"gemma3.rope.local.freq_base": 1e4, "gemma3.block_count": 26}, None),
}


@pytest.mark.parametrize("name", STRETCHED)
def test_global_positions_of_gemma3_are_stretched_where_ollama_knew_it_by_heart(name: str) -> None:
    added, factor = STRETCHED[name]
    assert known_values(LARGE | added).f32("rope.scaling.factor", None) == factor


def test_what_a_file_says_comes_first() -> None:
    found = known_values(LARGE | {"gemma3.rope.freq_base_swa": 5.0, "gemma3.rope.local.freq_base": 7.0,
                                  "gemma3.attention.layer_norm_rms_epsilon": 0.5})  # fmt: skip
    assert found.f32("rope.freq_base_swa") == 5.0
    assert found.f32("attention.layer_norm_rms_epsilon") == 0.5


def test_other_architectures_are_left_alone() -> None:
    values = {"general.architecture": "llama", "general.name": "x", "llama.rope.local.freq_base": 3.0,
              "tokenizer.ggml.tokens": ["a"]}  # fmt: skip
    found = known_values(values)
    assert dict(found.values) == {key: value for key, value in values.items() if "tokenizer" not in key}
    weights = {"blk.0.attn_out.weight": 1}
    assert known_names("llama", weights) is weights


def test_a_file_without_an_architecture() -> None:
    with pytest.raises(ModelFormatError, match=r"general\.architecture"):
        known_values({})


def test_two_tensors_of_one_name() -> None:
    weights = {"blk.0.attn_out.weight": 1, "blk.0.attn_output.weight": 2}
    with pytest.raises(ModelFormatError, match=re.escape("blk.0.attn_output.weight")):
        known_names("gptoss", weights)
