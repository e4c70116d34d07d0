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
        add = {str: writer.add_string, float: writer.add_float32, bool: writer.add_bool, int: writer.add_uint32,
               list: writer.add_array}[type(value)]  # fmt: skip
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


def moved(rules: Mapping[str, str]) -> Callable[[str], str]:
    """A name with some of its parts exchanged."""
    return lambda name: re.sub("|".join(map(re.escape, rules)), lambda known: rules[known[0]], name)


def with_spare(*names: str) -> Callable[[Tensors], Tensors]:
    """Besides, tensors that nothing uses."""
    return lambda tensors: {**tensors, **{name: np.ones((32, 2), np.float32) for name in names}}


def grouped_projections(tensors: Tensors) -> Tensors:
    """Queries, keys, values and gates of each of 2 heads of keys as one matrix; LINEAR in architectures/qwen35.py."""
    made = dict(tensors)
    for name in [name for name in tensors if name.endswith("attn_gate.weight")]:
        qkv, z = made.pop(name.replace("gate", "qkv")), made.pop(name)
        q, k, v = (part.reshape(2, -1, z.shape[1]) for part in np.split(qkv, [32, 64]))
        rows = np.concatenate((q, k, v, z.reshape(2, -1, z.shape[1])), axis=1)
        made[name.replace("attn_gate", "ssm_in")] = rows.reshape(-1, z.shape[1])
    return made


def four_axes(tensors: Tensors) -> Tensors:
    """Decays and convolutions of Kimi delta attention with as many axes as llama.cpp's converter gives them."""
    return {
        name: data.reshape(1, len(data), 1, -1) if "ssm_conv1d" in name
        else data.reshape(1, 1, -1, 1) if name.endswith("ssm_a") else data
        for name, data in tensors.items()
    }  # fmt: skip


def join_maps(tensors: Tensors) -> Tensors:
    """Maps of keys and values of latent attention as one matrix, a head's rows of both in turn."""
    joined = {}
    for name, data in tensors.items():
        if "attn_k_b" in name:
            both = np.concatenate((data.swapaxes(1, 2), tensors[name.replace("k_b", "v_b")]), axis=1)
            joined[name.replace("k_b", "kv_b")] = np.ascontiguousarray(both.reshape(-1, both.shape[-1]))
        elif "attn_v_b" not in name:
            joined[name] = data
    return joined


MLA = {f"attention.{part}_length": f"attention.{part}_length_mla" for part in ("key", "value")}
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
    "deepseek2": Theirs("deepseek-v3-bf16", "deepseek2", {**dict.fromkeys(MLA), **{v: k for k, v in MLA.items()}},
                        change=join_maps, rename=lambda name: name.replace("exp_probs_b.bias", "exp_probs_b")),
    "glm4moelite": Theirs("glm-4.7-flash", "glm4moelite", {**MLA, **{v: k for k, v in MLA.items()},
                          "expert_gating_func": None}, rename=lambda name: name.replace("attn_output", "attn_out")),
    "mistral3": Theirs("mistral3-bf16", "mistral3", added={"rope.scaling.type": "", "rope.scaling.factor": 0.0,
                                                           "rope.scaling.beta_fast": 0.0}),
    # What llama/compat of Ollama's repository translates for llama.cpp, and what its own engine read until May 2026.
    "qwen35": Theirs("qwen35", "qwen35", {
        "attention.recurrent_layers": None, "full_attention_interval": None, "attention.head_count_kv": None,
    }, added={"attention.head_count_kv": [0, 2, 0, 2], "ssm.v_head_reordered": True, "rope.mrope_interleaved": True,
              "mrope_sections": [11, 11, 10], "vision.block_count": 1, "image_token_id": 1},
        rename=moved({"ssm_dt.bias": "ssm_dt"}),
        change=with_spare("v.blk.0.attn_q.weight", "mtp.fc.weight", "mtp.layers.0.mlp.up_proj.weight")),
    "qwen35moe": Theirs("qwen35moe", "qwen35moe", {"attention.recurrent_layers": None},
                        added={"ssm.v_head_reordered": True}, rename=moved({"ssm_dt.bias": "ssm_dt"})),
    "qwen3next": Theirs("qwen3next", "qwen3next", {"attention.recurrent_layers": None, "attention.head_count_kv": None,
                                                   "full_attention_interval": None},
                        added={"attention.head_count_kv": [0, 2, 0, 2]}, rename=moved({"ssm_dt.bias": "ssm_dt"})),
    "qwen3next-of-llama.cpp-at-first": Theirs("qwen3next", "qwen3next", change=grouped_projections),
    "lfm2": Theirs("lfm2", "lfm2", {"feed_forward_length": None}, added={"feed_forward_length": 12288},
                   rename=moved({"token_embd_norm": "output_norm"})),
    "lfm2moe": Theirs("lfm2moe", "lfm2moe", {"expert_weights_norm": None, "norm_top_k_prob": None}),
    "nemotron_h": Theirs("nemotron_h", "nemotron_h", added={"attention.head_dim": 16}),
    "nemotron_h_moe": Theirs("nemotron_h_moe-latent-bf16", "nemotron_h_moe", {"moe_latent_size": None},
                             rename=moved({"ffn_latent_down": "ffn_latent_in", "ffn_latent_up": "ffn_latent_out"}),
                             change=with_spare("mtp.layers.0.mixer.experts.0.up_proj.weight")),
    "nemotron_h_omni": Theirs("nemotron_h_moe", "nemotron_h_omni", added={"vision.block_count": 1},
                              change=with_spare("v.blk.0.attn_qkv.weight", "mm.1.weight", "a.blk.0.ffn_up.weight")),
    "cohere2moe-of-llama.cpp": Theirs("cohere2moe-bf16", "cohere2moe", {"expert_gating_func": None},
                                      added={"expert_gating_func": 1}),
    # Keys and shapes of recurrent models in files of llama.cpp's converter, made of folders as they are published.
    "qwen3next-of-llama.cpp": Theirs("qwen3next", "qwen3next", dict.fromkeys(("attention.recurrent_layers",
                                     "norm_top_k_prob")), added={"vocab_size": 320}),
    "nemotron_h-of-llama.cpp": Theirs("nemotron_h", "nemotron_h", added={"rope.dimension_count": 16, "vocab_size": 320,
                                      "rope.scaling.finetuned": False}),
    "granitehybrid-of-llama.cpp": Theirs("granitehybrid", "granitehybrid", {**dict.fromkeys(MLA),
        "context_length": None}, added={"expert_shared_feed_forward_length": 48, "context_length": 2**20}),
    "kimi-linear-of-llama.cpp": Theirs("kimi-linear-bf16", "kimi-linear", {"attention.value_length": None},
                                       added={"attention.value_length": 8, "expert_group_used_count": 1,
                                              "rope.freq_base": 10000.0}, change=four_axes),
    "falcon-h1-of-llama.cpp": Theirs("falcon-h1", "falcon-h1", {"rope.dimension_count": None}),
    "lfm2moe-of-llama.cpp": Theirs("lfm2moe", "lfm2moe", dict.fromkeys(("rope.dimension_count",
                                                                        "expert_weights_scale"))),
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
