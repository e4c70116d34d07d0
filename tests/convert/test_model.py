"""Conversion from end to end: types, memory, files that are never half there, and what is wrong said by name."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantType

from ollama_engine.convert import convert_model
from ollama_engine.errors import ConfigError, ModelFormatError, UnsupportedModelError
from tests.convert.folders import HfFolder
from tests.support.suite import slow_except
from tests.support.tiny import TinyLlama, random_weights

# -- types -------------------------------------------------------------------------------------------------------------

PLAIN = random_weights(TinyLlama())


@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_each_type_from_each(source: str, outtype: str, tmp_path: Path) -> None:
    folder = HfFolder(dtype=source).write(tmp_path / "source")
    convert_model(folder, tmp_path / "out.gguf", outtype)
    found = gguf.GGUFReader(tmp_path / "out.gguf")
    assert found.fields["general.file_type"].contents() == {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}[outtype]
    for tensor in found.tensors:
        expected = PLAIN[tensor.name]
        assert tensor.tensor_type == (QuantType.F32 if expected.ndim == 1 else QuantType[outtype.upper()])
        if source == "F16":
            expected = expected.astype(np.float16).astype(np.float32)
        if source == "BF16":
            expected = (expected.view(np.uint32) & 0xFFFF0000).view(np.float32)
        stored = gguf.quants.quantize(expected, tensor.tensor_type)
        assert tensor.data.tobytes() == stored.tobytes(), tensor.name


def test_rows_that_do_not_divide_become_f16(tmp_path: Path) -> None:
    folder = HfFolder(TinyLlama(n_embd=80, n_head=4, n_ff=96)).write(tmp_path / "source")
    convert_model(folder, tmp_path / "out.gguf", "q8_0")
    types = {t.name: t.tensor_type for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert types["blk.0.ffn_up.weight"] == QuantType.F16
    assert types["blk.0.ffn_down.weight"] == QuantType.Q8_0


# -- memory and files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outtype", slow_except(["f32", "f16", "q8_0"], "q8_0"))
def test_no_more_than_twice_the_largest_tensor_is_held(outtype: str, tmp_path: Path) -> None:
    """Numpy tells tracemalloc of its arrays. The largest tensor of the file is the embedding, 32 MiB as f32."""
    tiny = TinyLlama(n_layer=1, n_embd=1024, n_head=8, n_head_kv=8, n_ff=2048, n_vocab=8192, tied=True)
    folder = HfFolder(tiny, dtype="BF16").write(tmp_path / "source")
    largest = 8192 * 1024 * {"f32": 4, "f16": 2, "q8_0": 2}[outtype]  # q8_0: of the source
    tracemalloc.start()
    convert_model(folder, tmp_path / "out.gguf", outtype, threads=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 2 * largest + (12 << 20), f"{peak / 2**20:.0f} MiB"  # the vocabulary and its JSON


@pytest.mark.parametrize("outtype", slow_except(["f16", "q8_0"], "q8_0"))
def test_threads_make_no_difference(outtype: str, tmp_path: Path) -> None:
    """Matrices of several pieces, some of which change places."""
    tiny = TinyLlama(n_layer=2, n_embd=1024, n_head=8, n_head_kv=8, n_ff=1536, n_vocab=2048)
    folder = HfFolder(tiny, dtype="BF16").write(tmp_path / "source")
    for threads in (1, 5):
        convert_model(folder, tmp_path / f"{threads}.gguf", outtype, threads=threads)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "5.gguf").read_bytes()


def test_threads_are_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="threads is 1 or more, got 0"):
        convert_model(HfFolder().write(tmp_path / "source"), tmp_path / "out.gguf", threads=0)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_without_room_is_found_before_writing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = HfFolder().write(tmp_path / "source")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 30, (1 << 30) - (1 << 20), 1 << 20))
    with pytest.raises(OSError, match=r"no room: the file takes \d+\.\d KiB, and 1\.0 MiB are free; \d") as raised:
        convert_model(folder, tmp_path / "out.gguf", "f32")
    assert raised.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == ["source"]


def test_a_failure_on_the_way_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = HfFolder().write(tmp_path / "source")
    calls = []

    def progress(done: int, total: int) -> None:
        calls.append((done, total))
        if done > total // 2:
            assert list(tmp_path.glob(".*.part"))
            raise RuntimeError("pulled the plug")

    with pytest.raises(RuntimeError, match="pulled the plug"):
        convert_model(folder, tmp_path / "out.gguf", progress=progress)
    assert calls
    assert os.listdir(tmp_path) == ["source"]


# -- what is wrong -----------------------------------------------------------------------------------------------------


def refused(folder: HfFolder, tmp_path: Path, kind: type[Exception], message: str) -> None:
    source = folder.write(tmp_path / "source")
    with pytest.raises(kind, match=message):
        convert_model(source, tmp_path / "out.gguf")
    assert os.listdir(tmp_path) == ["source"]


def test_an_unknown_architecture(tmp_path: Path) -> None:
    message = r"architectures is \['Mamba9'\], which cannot be converted; supported: .*LlamaForCausalLM"
    refused(HfFolder(config={"architectures": ["Mamba9"]}), tmp_path, UnsupportedModelError, message)


def test_a_missing_tensor_with_name_and_shape(tmp_path: Path) -> None:
    def rename(name: str) -> str:
        return "lost" if name == "model.layers.1.mlp.up_proj.weight" else name

    message = r"missing from the checkpoint: model.layers.1.mlp.up_proj.weight \[96, 64\]"
    refused(HfFolder(rename=rename), tmp_path, ModelFormatError, message)


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    message = (
        r"model.layers.0.mlp.gate_proj.weight F32 \[96, 64\] does not fit .*config.json, .* \[128, 64\] \(n_ff, n_e"
    )
    refused(HfFolder(config={"intermediate_size": 128}), tmp_path, ModelFormatError, message)


def test_a_tensor_too_many(tmp_path: Path) -> None:
    message = r"holds tensors that llama does not have: model.layers.1.input_layernorm.weight F32 \[64\]"
    refused(HfFolder(config={"num_hidden_layers": 1}), tmp_path, ModelFormatError, message)


def test_a_config_without_a_size(tmp_path: Path) -> None:
    refused(HfFolder(config={"hidden_size": None}), tmp_path, ModelFormatError, "config.json has no hidden_size")


def test_a_config_with_a_size_of_another_kind(tmp_path: Path) -> None:
    message = "config.json: max_position_embeddings .* is 'many', expected a whole number"
    refused(HfFolder(config={"max_position_embeddings": "many"}), tmp_path, ModelFormatError, message)


def test_an_unknown_rope(tmp_path: Path) -> None:
    message = "rope_type 'spiral' is not supported; supported: default, linear"
    refused(HfFolder(config={"rope_scaling": {"type": "spiral"}}), tmp_path, UnsupportedModelError, message)


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    message = "no tokenizer.json, tokenizer.model, spiece.model, tiktoken.model, hy.tiktoken or vocab.txt"
    refused(HfFolder(files={"tokenizer.json": None}), tmp_path, ModelFormatError, message)


def test_an_unknown_tokenizer(tmp_path: Path) -> None:
    files = {"tokenizer.json": {"model": {"type": "WordLevel", "vocab": {}}}}
    refused(
        HfFolder(files=files), tmp_path, UnsupportedModelError, "of type 'WordLevel' is not supported; supported: BPE"
    )


def test_an_unknown_outtype(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outtype is one of f32, f16, bf16, q8_0, got 'q4_0'"):
        convert_model(HfFolder().write(tmp_path / "source"), tmp_path / "out.gguf", "q4_0")


def test_nan_is_said_with_the_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = HfFolder(spoil={"model.layers.1.self_attn.k_proj.weight": np.nan}).write(tmp_path / "source")
    with caplog.at_level(logging.WARNING, "ollama_engine"):
        convert_model(folder, tmp_path / "out.gguf")
    assert [record.message for record in caplog.records] == [
        f"{folder}/model.safetensors: tensor model.layers.1.self_attn.k_proj.weight holds NaN; the model is damaged"
    ]
