"""`quantize`: from the arguments to the file, and what goes wrong as one line."""

from __future__ import annotations

import os
from pathlib import Path

import gguf

from ollama_engine import demo
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.size_texts import size
from tests.convert.quant.golden import tensor_hash, write_small_gguf_imatrix, write_small_imatrix
from tests.support.tiny import write_tiny_llama


def test_a_file_becomes_smaller(cli, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "in.gguf", n_embd=256, n_ff=256).path
    out = str(tmp_path / "out.gguf")
    result = cli("quantize", source, out, "q4_k_m", "--threads", "2")
    sizes = [size(os.path.getsize(path)) for path in (source, out)]
    assert (result.code, result.out, result.err) == (0, f"{out}\n", f"{sizes[0]} -> {sizes[1]}\n")
    with GGUFFile(out) as file:
        assert file.tensors["blk.0.ffn_up.weight"].dtype == "q4_K"
        assert file.tensors["output.weight"].dtype == "q6_K"


def test_an_importance_matrix_is_used(cli, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "in.gguf", n_embd=256, n_ff=256).path
    imatrix = write_small_imatrix(tmp_path / "imatrix.dat", source)
    cli("quantize", source, str(tmp_path / "plain.gguf"), "Q3_K_M")
    assert cli("quantize", source, str(tmp_path / "out.gguf"), "Q3_K_M", "--imatrix", str(imatrix)).code == 0
    with GGUFFile(tmp_path / "out.gguf") as file:
        assert file.metadata["quantize.imatrix.file"] == str(imatrix)
        assert file.metadata["quantize.imatrix.dataset"] == "some text"
        assert file.metadata["quantize.imatrix.chunks_count"] == 7
    assert (tmp_path / "out.gguf").read_bytes()[-65536:] != (tmp_path / "plain.gguf").read_bytes()[-65536:]


def test_the_newer_kind_of_importance_matrix(cli, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "in.gguf", n_embd=256, n_ff=256).path
    for name, write in (("old", write_small_imatrix), ("new", write_small_gguf_imatrix)):
        imatrix = write(tmp_path / f"{name}.imatrix", source)
        assert cli("quantize", source, str(tmp_path / name), "Q3_K_M", "--imatrix", str(imatrix)).code == 0
    assert tensor_hash(tmp_path / "old") == tensor_hash(tmp_path / "new")


def test_the_demo_by_its_name(cli, tmp_path: Path) -> None:
    """It is quantized already: only the type that it has can be made of it."""
    out = tmp_path / "out.gguf"
    assert cli("quantize", "demo", str(out), "Q8_0").code == 0
    ours, theirs = ({t.name: t.data.tobytes() for t in gguf.GGUFReader(path).tensors} for path in (out, demo.path()))
    assert ours == theirs
    result = cli("quantize", "demo", str(tmp_path / "small.gguf"), "Q4_0")
    assert result.code == 1
    assert "is q8_0 already; rounding twice loses more than once" in result.err


def test_names_that_come_near_are_offered(cli, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "Model-F16.gguf").path
    result = cli("quantize", str(tmp_path / "model-f61.gguf"), str(tmp_path / "out.gguf"), "Q8_0")
    missing = f"error: {tmp_path / 'model-f61.gguf'}: No such file or directory"
    assert (result.code, result.err) == (1, f"{missing}; did you mean {source}?\n")
    result = cli("quantize", source, str(tmp_path / "out.gguf"), "Q8_0", "--imatrix", str(tmp_path / "imatrix"))
    assert result.err == f"error: {tmp_path / 'imatrix'}: No such file or directory\n"
    result = cli("quantize", str(tmp_path / "no" / "x.gguf"), str(tmp_path / "out.gguf"), "Q8_0")
    assert result.err == f"error: {tmp_path / 'no' / 'x.gguf'}: No such file or directory\n"


def test_what_is_wrong_is_said_in_one_line(cli, tiny: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.gguf")
    result = cli("quantize", tiny, out, "Q9")
    assert result.code == 2
    assert result.err.startswith("error: TYPE is one of F32, F16, ")
    result = cli("quantize", tiny, tiny, "Q8_0")
    assert (result.code, result.err) == (
        1, f"error: {tiny}: exists already; remove it first, choose another name, or set --overwrite\n",
    )  # fmt: skip
    (tmp_path / "broken.dat").write_bytes(b"nothing")
    result = cli("quantize", tiny, out, "Q8_0", "--imatrix", str(tmp_path / "broken.dat"))
    assert result.err == (
        f"error: {tmp_path / 'broken.dat'}: neither a GGUF nor an older importance matrix, or cut off\n"
    )
    assert not Path(out).exists()


def test_a_refusal_stands_alone(cli, tmp_path: Path) -> None:
    """The warning of rows that K-quants do not divide comes with a file only."""
    source = write_tiny_llama(tmp_path / "in.gguf").path
    small = str(tmp_path / "small.gguf")
    assert cli("quantize", source, small, "Q8_0").code == 0
    refused = cli("quantize", small, str(tmp_path / "out.gguf"), "Q4_K_M")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "is q8_0 already" in refused.err
    written = cli("quantize", source, str(tmp_path / "out.gguf"), "Q4_K_M")
    assert (written.code, written.err.startswith("warning: ")) == (0, True)
