"""Importance matrices as llama-imatrix writes them now, GGUF: the numbers of the older format in another file."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.convert import quantize_model
from ollama_engine.convert.quant.imatrix import read_imatrix
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.convert.quant import golden
from tests.convert.quant.make_goldens import quantize

PRESETS = ("Q4_0", "Q4_K_M", "IQ4_NL", "Q3_K_M", "Q2_K")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """(model, its importance matrix as GGUF, the same in the older format)."""
    folder = Path(tmp_path_factory.mktemp("small"))
    model = golden.write_small_model(folder / "small.gguf")
    new = golden.write_small_gguf_imatrix(folder / "imatrix.gguf", model)
    return Path(model), new, golden.write_small_imatrix(folder / "imatrix.dat", model)


def test_both_formats_say_the_same(small: tuple[Path, Path, Path]) -> None:
    new, old = read_imatrix(small[1]), read_imatrix(small[2])
    assert (new.dataset, new.n_chunks) == (old.dataset, old.n_chunks) == ("some text", 7)
    assert set(new.weights) == set(old.weights) == set(golden.importance(str(small[0])))
    for name, weights in new.weights.items():
        np.testing.assert_array_equal(weights, old.weights[name], err_msg=name)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other compilers fuse additions otherwise")
@pytest.mark.parametrize("preset", PRESETS)
def test_data_are_those_of_llama_quantize(preset: str, small: tuple[Path, Path, Path], tmp_path: Path) -> None:
    quantize_model(small[0], tmp_path / "out.gguf", preset, threads=2, imatrix=small[1])
    assert golden.tensor_hash(tmp_path / "out.gguf") == golden.load()["hashes"][f"{preset} imatrix"]


@pytest.mark.skipif(golden.peer() is None, reason=f"{golden.PEER} names no llama-quantize; see bench/peers.py")
@pytest.mark.parametrize("preset", ["Q4_K_M", "IQ4_NL", "Q2_K_S"])
def test_files_are_those_of_llama_quantize(preset: str, tmp_path: Path) -> None:
    """All is measured here: Q2_K_S wants it. One expert was never chosen, and another was often."""
    model = golden.write_small_model(tmp_path / "small.gguf")
    sums = golden.importance(model, skip="nothing")
    counts = {name: np.full((len(s), 1), 3, np.float32) for name, s in sums.items()}
    for name, found in counts.items():
        if "_exps" in name:
            found[:] = [[0], [4711]]
    matrix = golden.write_gguf_imatrix(tmp_path / "imatrix.gguf", sums, counts)
    quantize(str(golden.peer()), Path(model), tmp_path / "theirs.gguf", preset, "--imatrix", str(matrix))
    quantize_model(model, tmp_path / "ours.gguf", preset, imatrix=matrix)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def test_metadata_say_where_it_came_from(small: tuple[Path, Path, Path], tmp_path: Path) -> None:
    quantize_model(small[0], tmp_path / "out.gguf", "Q4_0", imatrix=small[1])
    with GGUFFile(tmp_path / "out.gguf") as file:
        found = {key: value for key, value in file.metadata.items() if key.startswith("quantize.")}
    assert found == {
        "quantize.imatrix.file": str(small[1]), "quantize.imatrix.dataset": "some text",
        "quantize.imatrix.entries_count": len(golden.importance(str(small[0]))), "quantize.imatrix.chunks_count": 7,
    }  # fmt: skip


# -- refused -----------------------------------------------------------------------------------------------------------

NAME = "blk.0.ffn_up.weight"
ONES = np.ones((1, 256), np.float32)
ONE = np.ones((1, 1), np.float32)
BROKEN: dict[str, tuple[NDArray[Any], NDArray[Any] | None, dict[str, Any], str]] = {
    "no-chunks": (ONES, ONE, {"chunk_count": None}, "imatrix.chunk_count is missing; is it an importance matrix"),
    "no-counts": (ONES, None, {}, f"{NAME} has no sums and counts as float32"),
    "halves": (ONES.astype(np.float16), ONE, {}, f"{NAME} has no sums and counts as float32"),
    "odd-counts": (ONES, np.ones((3, 1), np.float32), {}, "256 sums for 3 counts"),
    "not-finite": (ONES * np.float32(np.inf), ONE, {}, f"the importance of {NAME} is not finite"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_ones(name: str, tmp_path: Path) -> None:
    sums, counts, keys, message = BROKEN[name]
    path = golden.write_gguf_imatrix(
        tmp_path / "x.gguf", {NAME: sums}, {} if counts is None else {NAME: counts}, **keys
    )
    with pytest.raises(ModelFormatError, match=message):
        read_imatrix(path)


def test_another_model_is_no_importance_matrix(small: tuple[Path, Path, Path]) -> None:
    with pytest.raises(ModelFormatError, match=r"imatrix\.datasets is missing; is it an importance matrix"):
        read_imatrix(small[0])


def test_one_of_another_model(small: tuple[Path, Path, Path], tmp_path: Path) -> None:
    name = "blk.0.attn_q.weight"
    path = golden.write_gguf_imatrix(tmp_path / "x.gguf", {name: np.ones((1, 32), np.float32)}, {name: ONE})
    with pytest.raises(ModelFormatError, match="32 weights of importance, expected 256 for 1 matrices"):
        quantize_model(small[0], tmp_path / "out.gguf", "Q4_0", imatrix=path)
    assert not (tmp_path / "out.gguf").exists()
