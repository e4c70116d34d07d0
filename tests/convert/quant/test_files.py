"""Whole files: bit by bit those of llama-quantize, every key kept, and what is refused."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.convert import quantize_model
from ollama_engine.convert.quant.presets import PRESETS
from ollama_engine.errors import ConfigError, ModelFormatError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.convert.quant import golden
from tests.convert.quant.make_goldens import quantize
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama

QUICK = ("Q4_0", "Q4_K_M", "Q4_K_M imatrix", "Q6_K", "IQ4_NL imatrix")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(model, importance matrix)."""
    folder = tmp_path_factory.mktemp("small")
    model = golden.write_small_model(folder / "small.gguf")
    return Path(model), golden.write_small_imatrix(folder / "imatrix.dat", model)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other compilers fuse additions otherwise")
@pytest.mark.parametrize("label", slow_except(golden.load()["hashes"], *QUICK))
def test_data_are_those_of_llama_quantize(label: str, small: tuple[Path, Path], tmp_path: Path) -> None:
    preset, _, measured = label.partition(" ")
    quantize_model(small[0], tmp_path / "out.gguf", preset, threads=2, imatrix=small[1] if measured else None)
    assert golden.tensor_hash(tmp_path / "out.gguf") == golden.load()["hashes"][label]


@pytest.mark.skipif(golden.peer() is None, reason=f"{golden.PEER} names no llama-quantize; see bench/peers.py")
@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in ("F32", "Q2_K_S")])
def test_files_are_those_of_llama_quantize(preset: str, small: tuple[Path, Path], tmp_path: Path) -> None:
    quantize(str(golden.peer()), small[0], tmp_path / "theirs.gguf", preset)
    quantize_model(small[0], tmp_path / "ours.gguf", preset)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


@pytest.mark.skipif(golden.peer() is None, reason=f"{golden.PEER} names no llama-quantize; see bench/peers.py")
@pytest.mark.parametrize("preset", ["Q4_0", "Q4_K_M", "Q5_0", "IQ4_NL", "Q3_K_L", "Q2_K"])
def test_files_with_an_importance_matrix_too(preset: str, small: tuple[Path, Path], tmp_path: Path) -> None:
    quantize(str(golden.peer()), small[0], tmp_path / "theirs.gguf", preset, "--imatrix", str(small[1]))
    quantize_model(small[0], tmp_path / "ours.gguf", preset, imatrix=small[1])
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


@pytest.mark.parametrize("threads", slow_except([1, 3, 16], 3))
def test_threads_make_no_difference(threads: int, small: tuple[Path, Path], tmp_path: Path) -> None:
    quantize_model(small[0], tmp_path / "one.gguf", "Q4_K_M", threads=1, imatrix=small[1])
    quantize_model(small[0], tmp_path / "more.gguf", "Q4_K_M", threads=threads, imatrix=small[1])
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "more.gguf").read_bytes()


def test_every_key_keeps_its_value_and_type(tmp_path: Path) -> None:
    odd: dict[str, Any] = {"general.file_type": 1, "general.tags": ["a", "b"], "llama.some_flag": True}
    source = write_tiny_llama(tmp_path / "in.gguf", metadata=odd).path
    quantize_model(source, tmp_path / "out.gguf", "Q8_0")
    before, after = gguf.GGUFReader(source).fields, gguf.GGUFReader(tmp_path / "out.gguf").fields
    new = {"general.file_type": 7, "general.quantization_version": 2}
    for key, field in before.items():
        if key not in new and not key.startswith("GGUF."):
            assert (after[key].types, after[key].contents()) == (field.types, field.contents()), key
    assert {key: after[key].contents() for key in new} == new
    assert set(after) == set(before) | set(new)


def test_the_engine_runs_it(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "in.gguf", n_embd=256, n_ff=256, n_layer=2).path
    quantize_model(source, tmp_path / "out.gguf", "Q4_K_M")
    prompt = list(range(40, 60))
    with Engine(source, num_ctx=64, gpu_layers=0) as a, Engine(tmp_path / "out.gguf", num_ctx=64, gpu_layers=0) as b:
        before, after = a.logits(prompt), b.logits(prompt)
    assert np.corrcoef(before.ravel(), after.ravel())[0, 1] > 0.98


def test_progress_ends_at_the_size(small: tuple[Path, Path], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    quantize_model(small[0], tmp_path / "out.gguf", "Q4_0", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    with GGUFFile(tmp_path / "out.gguf") as file:
        assert seen[-1] == (sum(t.nbytes for t in file.tensors.values()),) * 2


# -- refused -----------------------------------------------------------------------------------------------------------


def test_quantized_weights_are_not_quantized_again(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "in.gguf", dtype="q8_0").path
    with pytest.raises(ConfigError, match=r"token_embd.weight is q8_0 already.*quantize from a file with f32"):
        quantize_model(source, tmp_path / "out.gguf", "Q4_0")
    assert os.listdir(tmp_path) == ["in.gguf"]


def test_a_preset_that_needs_importance_says_so(small: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Q2_K_S needs an importance matrix, and blk\.0\..* has none"):
        quantize_model(small[0], tmp_path / "out.gguf", "Q2_K_S")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_named(bad: float, tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path / "good.gguf")
    weights = {name: values.copy() for name, values in tiny.weights.items()}
    weights["blk.1.ffn_up.weight"][3, 5] = bad
    source = write_tiny_llama(tmp_path / "in.gguf", tensors=weights).path
    with pytest.raises(ModelFormatError, match=r"in.gguf: blk\.1\.ffn_up\.weight holds numbers that are not finite"):
        quantize_model(source, tmp_path / "out.gguf", "Q8_0")
    assert sorted(os.listdir(tmp_path)) == ["good.gguf", "in.gguf"]


def test_threads_are_at_least_one(small: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="threads is 1 or more, got 0"):
        quantize_model(small[0], tmp_path / "out.gguf", "Q4_0", threads=0)
