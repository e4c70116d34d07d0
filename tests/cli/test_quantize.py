"""`quantize`: from the arguments to the file, and what goes wrong as one line."""

from __future__ import annotations

from pathlib import Path

from ollama_engine.ml.gguf import GGUFFile
from tests.convert.quant.golden import write_small_imatrix
from tests.tiny import write_tiny_llama


def test_a_file_becomes_smaller(cli, tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "in.gguf", n_embd=256, n_ff=256).path
    out = str(tmp_path / "out.gguf")
    result = cli("quantize", source, out, "q4_k_m", "--threads", "2")
    assert (result.code, result.out, result.err) == (0, f"{out}\n", "")
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


def test_what_is_wrong_is_said_in_one_line(cli, tiny: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.gguf")
    result = cli("quantize", tiny, out, "Q9")
    assert result.code == 1
    assert result.err.startswith("error: no preset is called 'Q9'; there are F32, F16, ")
    result = cli("quantize", tiny, tiny, "Q8_0")
    assert (result.code, result.err) == (
        1, f"error: {tiny}: exists already; remove it first, or choose another name\n",
    )  # fmt: skip
    (tmp_path / "broken.dat").write_bytes(b"nothing")
    result = cli("quantize", tiny, out, "Q8_0", "--imatrix", str(tmp_path / "broken.dat"))
    assert result.err == (
        f"error: {tmp_path / 'broken.dat'}: neither a GGUF nor an older importance matrix, or cut off\n"
    )
    assert not Path(out).exists()
