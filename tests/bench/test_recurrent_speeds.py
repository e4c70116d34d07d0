"""bench/turns.py and bench/roofline.py on a small recurrent file: what they count is so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import roofline, turns
from bench.make_recurrent import write_recurrent
from bench.servers import Setting
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from tests.bench.test_make_recurrent import small


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recurrent") / "small.gguf"
    write_recurrent(str(path), small("lfm2"), "q8_0")
    return path


@pytest.mark.slow
def test_a_server_computes_what_is_new(path: Path) -> None:
    """The second question goes on from the prompt's last whole block, the others from where questions part."""
    waits = turns.measure("ollama_engine", Setting(path, 1, 4096, 1))
    computed = {kind: [wait.computed for wait in found] for kind, found in waits.items()}
    assert computed == {
        "first question": [2040], "second question": [56], "other questions": [40] * 6,
        "first turn": [60], "other turns": [61] * 9,
    }  # fmt: skip
    assert "| other questions | " in turns.report({"ollama_engine": waits})


def test_the_roofline_counts_the_weights_of_a_token(path: Path) -> None:
    result = roofline.measure(str(path), 1, 4, 1)
    with GGUFFile(path) as file:
        assert result.nbytes == sum(info.nbytes for info in file.tensors.values()), "the output is tied"
    assert min(result.read, result.ours) > 0
    shape = small("lfm2")
    windows = shape.layers.count("M") * shape.n_embd * (shape.n_taps - 1)
    assert result.states == 2 * 4 * windows, "f32, read and written"
    report = roofline.report(replace(result, read=0.5, ours=1.5, states=int(result.nbytes), llama_cpp=3.0))
    assert "2.00 times as fast as llama.cpp; reading alone would be 3.00 times" in report
