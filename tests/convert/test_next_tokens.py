"""Blocks that predict tokens further ahead: kept behind those that compute, which never see them; `show` says so."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from ollama_engine.cli.models.show import facts
from ollama_engine.convert import convert_model
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.gguf.next_tokens import n_blocks
from tests.models import families
from tests.models.heads import QWEN, converted, head_of, own_tensors, with_head
from tests.models.llama_cpp_converter import recorded, written
from tests.support.suite import slow_except

CASES = slow_except(
    ("qwen35", "qwen35moe", "qwen3next", "nemotron_h_moe", "deepseek-v3-plain", "glm-4.7-flash", "glm4moe"),
    "qwen35", "nemotron_h_moe", "deepseek-v3-plain", "glm4moe",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_head_is_kept_and_changes_nothing(name: str, tmp_path: Path) -> None:
    case = families.case(name)
    golden = families.load(case)
    weights = golden.weights_of(case, "make_family_goldens")
    head = head_of(case, weights)
    plain, path = families.converted(case, tmp_path), converted(case, tmp_path, {**weights, **head})
    prefix, own = own_tensors(case)
    published = {kind: head[f"{prefix}{name}.weight"] for name, kind in own.items()}
    with GGUFFile(plain) as without, GGUFFile(path) as file:
        before, after = Metadata(without.metadata), Metadata(file.metadata)
        n_layer = before.u32("block_count")
        assert (after.u32("block_count"), after.u32("nextn_predict_layers")) == (n_layer + 1, 1)
        assert n_blocks(after) == (n_layer, 1)
        extra = sorted(set(file.tensors) - set(without.tensors))
        assert all(tensor.startswith(f"blk.{n_layer}.") for tensor in extra)
        assert sum(np.prod(file.tensors[tensor].shape) for tensor in extra) == sum(v.size for v in head.values())
        known = facts(file)["head"]
        assert known == {"tensors": len(extra), "parameters": sum(v.size for v in head.values())}
        assert facts(without)["head"] is None
    stored = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
    for kind, values in published.items():
        expected = values if kind == "eh_proj" or own is not QWEN else values + 1
        assert np.array_equal(stored[f"blk.{n_layer}.nextn.{kind}.weight"], expected), kind
    with case.engine(plain) as without_head, case.engine(path, draft="off") as engine:
        assert np.array_equal(engine.logits(case.prompt), without_head.logits(case.prompt))
        assert engine.memory.layers == without_head.memory.layers, "what is not used takes no memory"


@pytest.mark.parametrize("name", ["nemotron_h_moe", "nemotron_h_moe-latent-bf16"])
def test_a_head_lies_in_the_file_as_llama_cpps_converter_writes_it(name: str, tmp_path: Path) -> None:
    """Where rows of queries and keys have another order: no score depends on it, since the model has no positions."""
    case = families.case(name)
    ours, theirs = written(converted(case, tmp_path, with_head(case))), recorded(name)
    rounded = {tensor for tensor in theirs["tensors"] if tensor.endswith("ssm_a")}  # -exp(A_log), in float32
    assert set(ours["tensors"]) == set(theirs["tensors"])
    assert {tensor for tensor, is_ours in ours["tensors"].items() if theirs["tensors"][tensor] != is_ours} <= rounded
    for key in ("block_count", "nextn_predict_layers", "attention.head_count_kv", "feed_forward_length"):
        assert ours["keys"][f"nemotron_h_moe.{key}"] == theirs["keys"][f"nemotron_h_moe.{key}"], key


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"mtp.layers.1.": "mtp.layers.0."}, "2 blocks that predict further tokens", id="two"),
        pytest.param({"mtp.lm_head.weight": "mtp.fc.weight"}, r"mtp\.lm_head\.weight", id="more than is known"),
        pytest.param({"mtp.norm.weight": ""}, r"are missing from the checkpoint: mtp\.norm\.weight", id="incomplete"),
        pytest.param({"mtp.norm.weight": "mtp.fc.weight"}, r"mtp\.norm\.weight.* does not fit", id="misfit"),
    ],
)
def test_a_head_that_does_not_fit_is_left_out(
    changes: dict[str, str], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning, and as if it was not there. `changes`: new beginning of names -> that of the copied ones."""
    case = families.case("qwen35")
    weights = families.load(case).weights_of(case, "make_family_goldens")
    head = head_of(case, weights)
    for new, old in changes.items():
        copies = {name.replace(old, new): head[name] for name in list(head) if old and name.startswith(old)}
        head = {name: values for name, values in head.items() if name != new} | copies
    made = converted(case, tmp_path / "a", {**weights, **head})
    assert made.read_bytes() == converted(case, tmp_path / "b", weights).read_bytes()
    (warning,) = (record.getMessage() for record in caplog.records if "left out" in record.message)
    assert re.search(f"{len(head)} tensors that nothing uses yet, .*{reason}", warning)


def test_what_else_is_missing_is_said_beside_such_a_head(tmp_path: Path) -> None:
    case = families.case("qwen35")
    golden = families.load(case)
    weights = golden.weights_of(case, "make_family_goldens")
    head = head_of(case, weights)
    del head["mtp.norm.weight"], weights["model.layers.0.linear_attn.A_log"]
    source = families.write_folder(tmp_path / "source", golden.config, {**weights, **head}, case.dtype)
    with pytest.raises(ModelFormatError, match=r"missing from the checkpoint: model\.layers\.0\.linear_attn\.A_log"):
        convert_model(source, tmp_path / "a.gguf", "f32")


def test_a_file_of_such_blocks_only_is_refused() -> None:
    values = {"general.architecture": "qwen35", "qwen35.block_count": 1, "qwen35.nextn_predict_layers": 1}
    with pytest.raises(ModelFormatError, match="block_count 1"):
        n_blocks(Metadata(values))


def test_layers_of_any_order_are_converted(tmp_path: Path) -> None:
    """`attention.recurrent_layers` says which have attention, where they follow no period."""
    case = families.case("qwen35")
    golden = families.load(case)
    swapped = {"model.layers.1.": "model.layers.0.", "model.layers.0.": "model.layers.1."}
    weights = {
        next((new + name[len(old) :] for old, new in swapped.items() if name.startswith(old)), name): values
        for name, values in golden.weights_of(case, "make_family_goldens").items()
    }
    types = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    config = {**golden.config, "layer_types": types}
    source = families.write_folder(tmp_path / "source", config, weights, case.dtype)
    convert_model(source, tmp_path / "a.gguf", "f32")
    with case.engine(tmp_path / "a.gguf") as engine:
        assert len(engine.generate(case.prompt, max_tokens=4, temperature=0).tokens) == 4
