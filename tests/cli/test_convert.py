"""`convert`: a folder becomes a file that runs, and what goes wrong is one line."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.size_texts import size
from tests.cli.program import COMMAND, environment
from tests.convert.folders import HfFolder
from tests.models import families
from tests.support.tiny import TinyLlama
from tests.support.waiting import eventually


@pytest.fixture
def source(tmp_path: Path) -> str:
    return str(HfFolder().write(tmp_path / "source"))


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_a_folder_becomes_a_file_that_runs(cli, source: str, tmp_path: Path, outtype: str) -> None:
    out = str(tmp_path / "out.gguf")
    result = cli("convert", source, "-o", out, "--outtype", outtype)
    sizes = [size(os.path.getsize(path)) for path in (f"{source}/model.safetensors", out)]
    assert (result.code, result.out, result.err) == (0, f"{out}\n", f"{sizes[0]} -> {sizes[1]}\n")
    with GGUFFile(out) as file:
        assert file.tensors["blk.0.ffn_up.weight"].dtype == outtype
        assert file.tensors["blk.0.ffn_norm.weight"].dtype == "f32"
    with Engine(out, num_ctx=64, gpu_layers=0) as engine:
        assert np.isfinite(engine.logits("Hello")).all()


def test_what_is_there_already_stays(cli, source: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")
    result = cli("convert", source, "-o", str(out))
    assert (result.code, result.out) == (1, "")
    assert result.err == f"error: {out}: exists already; remove it first, choose another name, or set --overwrite\n"
    assert out.read_bytes() == b"precious"
    assert cli("convert", source, "-o", str(out), "--overwrite").code == 0
    assert out.read_bytes()[:4] == b"GGUF"


def test_a_file_in_place_of_the_folder(cli, source: str, tmp_path: Path) -> None:
    result = cli("convert", f"{source}/config.json", "-o", str(tmp_path / "out.gguf"))
    expected = f"error: {source}/config.json: is a file; SRC is the folder of a model as Hugging Face publishes it\n"
    assert (result.code, result.err) == (1, expected)


def test_a_refusal_stands_alone(cli, tmp_path: Path) -> None:
    """A config's odd token is worth a warning, but not above the reason why there is no file."""
    folder = HfFolder()
    folder.config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    source = folder.write(tmp_path / "source")
    out = tmp_path / "out.gguf"
    assert "warning: " in cli("convert", str(source), "-o", str(out)).err
    (source / "tokenizer.json").unlink()
    refused = cli("convert", str(source), "-o", str(out), "--overwrite")
    assert (refused.code, refused.err.count("\n")) == (1, 1), refused.err
    assert "tokenizer" in refused.err


def test_a_folder_that_is_none(cli, tmp_path: Path) -> None:
    result = cli("convert", str(tmp_path / "nowhere"), "-o", str(tmp_path / "out.gguf"))
    assert (result.code, result.err) == (
        1,
        f"error: {tmp_path / 'nowhere'}: No such file or directory; SRC is the folder of a model as Hugging Face "
        "publishes it\n",
    )
    (tmp_path / "Nowere").mkdir()
    result = cli("convert", str(tmp_path / "nowhere"), "-o", str(tmp_path / "out.gguf"))
    assert result.err.endswith(f"nowhere: No such file or directory; did you mean {tmp_path / 'Nowere'}?\n")
    result = cli("convert", str(tmp_path), "-o", str(tmp_path / "out.gguf"))
    assert result.code == 1
    assert "config.json: no such file; SRC is the folder of a model" in result.err


def test_a_model_that_reads_images_without_that_part(cli, tmp_path: Path) -> None:
    case = families.case("mistral3-bf16")
    golden = families.load(case)
    source = families.write_folder(tmp_path / "source", golden.config, case.weights(golden.shapes), case.dtype)
    for name, flags in (("whole", []), ("text", ["--no-vision"])):
        assert cli("convert", str(source), "-o", str(tmp_path / f"{name}.gguf"), *flags).code == 0
    with GGUFFile(tmp_path / "whole.gguf") as whole, GGUFFile(tmp_path / "text.gguf") as text:
        assert {name for name in whole.tensors if not name.startswith(("v.", "mm."))} == set(text.tensors)
        assert len(whole.tensors) > len(text.tensors)


def test_usage(cli, source: str) -> None:
    assert cli("convert", source).code == 2
    assert cli("convert", source, "-o", "x", "--outtype", "q4_k").code == 2


@pytest.mark.slow
def test_a_killed_conversion_leaves_no_half_file(tmp_path: Path) -> None:
    """Killed at some point of the writing: the final name is never there, and Ctrl-C removes the temporary one."""
    big = HfFolder(TinyLlama(n_layer=6, n_embd=512, n_ff=4096, n_head=8, n_head_kv=8)).write(tmp_path / "big")
    for end in (signal.SIGKILL, signal.SIGINT):
        command = [*COMMAND, "convert", str(big), "-o", str(tmp_path / "out.gguf"), "--outtype", "f32"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        eventually(lambda: list(tmp_path.glob(".out.gguf.*.part")) or process.poll() is not None)  # noqa: B023
        process.send_signal(end)
        process.communicate(timeout=60)
        if (tmp_path / "out.gguf").exists():  # it was done before the signal came
            with GGUFFile(tmp_path / "out.gguf"):
                pass
        else:
            assert bool(list(tmp_path.glob(".out.gguf.*.part"))) == (end is signal.SIGKILL)
        for path in (*tmp_path.glob(".out.gguf.*.part"), *tmp_path.glob("out.gguf")):
            os.unlink(path)
