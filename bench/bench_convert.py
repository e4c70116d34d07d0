"""How fast is a folder converted, and a file quantized? One layer of Llama 3.2 1B: 62 million numbers, 124 MB as f16.

Times include what makes the file safe (fsync). Rates are those of the disk below pytest's temporary folder; with
`--basetemp` in a file system that lies in memory they are those of the work itself. Twin: the copy of a file of that
size. Peer: llama-quantize. Groups are questions; within one the rows compare. Run:
`python -m pytest bench/bench_convert.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as QuantType
from numpy.typing import NDArray

from bench.make_model import random_tensor, vocabulary
from bench.model_shapes import SHAPES
from bench.peer_tools import has_tool, tool
from ollama_engine.convert import convert_model, quantize_model

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SHAPE = SHAPES["llama-1b"]
N_VOCAB = 512
ROUNDS = 5
THREADS = 2
QUANTIZE = f"quantize f16 to Q4_K_M with {THREADS} threads"


# -- a folder as it is published ---------------------------------------------------------------------------------------


def tensors() -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, numpy shape) of a checkpoint of one layer."""
    q, kv, n, n_ff = SHAPE.n_head * SHAPE.head_dim, SHAPE.n_head_kv * SHAPE.head_dim, SHAPE.n_embd, SHAPE.n_ff
    yield "model.embed_tokens.weight", (N_VOCAB, n)
    yield "model.norm.weight", (n,)
    layer = "model.layers.0."
    yield layer + "input_layernorm.weight", (n,)
    yield layer + "post_attention_layernorm.weight", (n,)
    for name, rows, length in (("q", q, n), ("k", kv, n), ("v", kv, n), ("o", n, q)):
        yield f"{layer}self_attn.{name}_proj.weight", (rows, length)
    for name, rows, length in (("gate", n_ff, n), ("up", n_ff, n), ("down", n, n_ff)):
        yield f"{layer}mlp.{name}_proj.weight", (rows, length)


def numbers(rng: np.random.Generator, name: str, dims: tuple[int, ...], dtype: str) -> NDArray[Any]:
    kind = {"F16": QuantType.F16, "BF16": QuantType.BF16}[dtype]
    found = random_tensor(rng, name, dims, kind)
    if len(dims) > 1:
        return found
    return found.astype(np.float16) if dtype == "F16" else (found.view(np.uint32) >> 16).astype(np.uint16)


def write_folder(folder: Path, dtype: str) -> Path:
    """The format of weights: the documentation of the safetensors package."""
    folder.mkdir()
    header, offset = {}, 0
    for name, dims in tensors():
        end = offset + 2 * int(np.prod(dims))
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [offset, end]}
        offset = end
    rng = np.random.default_rng(0)
    with open(folder / "model.safetensors", "wb") as file:
        text = json.dumps(header).encode()
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dims in tensors():
            file.write(np.ascontiguousarray(numbers(rng, name, dims, dtype)).view(np.uint8).data)
    (folder / "config.json").write_text(json.dumps(config()))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    return folder


def config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "vocab_size": N_VOCAB, "hidden_size": SHAPE.n_embd,
        "intermediate_size": SHAPE.n_ff, "num_hidden_layers": 1, "num_attention_heads": SHAPE.n_head,
        "num_key_value_heads": SHAPE.n_head_kv, "head_dim": SHAPE.head_dim, "max_position_embeddings": SHAPE.n_ctx,
        "rms_norm_eps": SHAPE.norm_eps, "rope_theta": SHAPE.rope_base, "tie_word_embeddings": True,
    }  # fmt: skip


def tokenizer() -> dict[str, Any]:
    tokens, merges = vocabulary(N_VOCAB)
    model = {"type": "BPE", "vocab": {text: i for i, text in enumerate(tokens)}, "merges": merges}
    return {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}, "model": model}


@pytest.fixture(scope="module", params=["F16", "BF16"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(type of its weights, folder)."""
    return request.param, write_folder(tmp_path_factory.mktemp("source") / "model", request.param)


@pytest.fixture(scope="module")
def f16_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("f16")
    convert_model(write_folder(folder / "model", "F16"), folder / "f16.gguf", "f16")
    return folder / "f16.gguf"


# -- rows --------------------------------------------------------------------------------------------------------------


def run(benchmark: BenchmarkFixture, group: str, target: Path, work: Callable[[], object]) -> None:
    """`work` makes `target`, which is removed before each round."""
    benchmark.group = group
    benchmark.pedantic(work, setup=lambda: target.unlink(missing_ok=True), rounds=ROUNDS, warmup_rounds=1)
    target.unlink()


@pytest.mark.parametrize("outtype", ["f16", "q8_0"])
def test_convert(benchmark: BenchmarkFixture, source: tuple[str, Path], outtype: str, tmp_path: Path) -> None:
    dtype, folder = source
    target = tmp_path / "out.gguf"
    run(benchmark, f"convert {dtype} to {outtype}", target, lambda: convert_model(folder, target, outtype))


@pytest.mark.twin
def test_copy(benchmark: BenchmarkFixture, f16_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.gguf"

    def copy() -> None:
        shutil.copyfile(f16_file, target)
        with open(target, "rb") as file:
            os.fsync(file.fileno())

    run(benchmark, "convert F16 to f16", target, copy)


def test_quantize(benchmark: BenchmarkFixture, f16_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    run(benchmark, QUANTIZE, target, lambda: quantize_model(f16_file, target, "Q4_K_M", threads=THREADS))


@pytest.mark.peer
@pytest.mark.skipif(not has_tool("llama-quantize"), reason="llama-quantize is not built: python bench/peers.py build")
def test_quantize_peer(benchmark: BenchmarkFixture, f16_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    command = [tool("llama-quantize"), str(f16_file), str(target), "Q4_K_M", str(THREADS)]
    run(benchmark, QUANTIZE, target, lambda: subprocess.run(command, check=True, capture_output=True))
