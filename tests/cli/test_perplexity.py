"""`perplexity`: from the arguments to the figure, and what goes wrong as one line."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ollama_engine import Engine, demo
from ollama_engine.cli.progress import ERASE_LINE
from tests.cli.program import Terminal
from tests.models import encoders

TEXT = (
    "Once upon a time, there was a little girl named Lily. She had a red ball and she loved to play with it in the "
    "park. One day the ball rolled into a big bush, and Lily was sad. Then a kind dog came and helped her to find it. "
) * 4


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def expected(num_ctx: int, n_chunks: int) -> float:
    """By the rule of llama-perplexity, from an engine's logits."""
    scores: list[float] = []
    with Engine(demo.path(), num_ctx=num_ctx, threads=1, gpu_layers=0) as engine:
        ids = engine.tokenize(TEXT)
        for start in range(0, n_chunks * num_ctx, num_ctx):
            chunk = [ids[0], *ids[start + 1 : start + num_ctx]]
            rows = engine.logits(chunk).astype(np.float64)
            for at in range(num_ctx // 2, num_ctx - 1):
                scores.append(float(np.log(np.exp(rows[at]).sum()) - rows[at, chunk[at + 1]]))
    return float(np.exp(np.mean(scores)))


def test_json(cli, text: str) -> None:
    result = cli("perplexity", "demo", text, "--ctx", "64", "--chunks", "2", "--threads", "1", "--json")
    assert (result.code, result.err) == (0, "")
    told = json.loads(result.out)
    assert told["perplexity"] == pytest.approx(expected(64, 2), rel=5e-3)
    assert 0 < told["error"] < told["perplexity"]
    assert {k: told[k] for k in ("model", "text", "ctx", "chunks", "tokens_scored")} == {
        "model": "demo.gguf", "text": text, "ctx": 64, "chunks": 2, "tokens_scored": 62,
    }  # fmt: skip
    assert told["seconds"] > 0


def test_for_people(cli, text: str) -> None:
    lines = cli("perplexity", "demo", text, "--ctx", "32", "-t", "1").out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["perplexity", "tokens scored", "time"]
    value, _, error = lines[0].split()[1:]
    assert 1 < float(value) < 1000
    assert float(error) > 0
    assert lines[1].endswith(" chunks of 32")


def test_standard_input(cli, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--ctx", "32", "--chunks", "1", "-t", "1", "--json")
    file = json.loads(cli("perplexity", "demo", text, *options).out)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    piped = json.loads(cli("perplexity", "demo", "-", *options).out)
    assert piped["perplexity"] == file["perplexity"]


def test_a_terminal_sees_the_figure_so_far(text: str) -> None:
    with Terminal("perplexity", "demo", text, "--ctx", "32", "-t", "1") as terminal:
        assert terminal.end() == 0
        shown = terminal.shown.decode()
    assert "chunk 1 of " in shown
    assert "ETA 0:0" in shown
    assert "tokens scored" in shown.rsplit(ERASE_LINE, 1)[1]


def test_what_is_wrong_is_said_in_one_line(cli, text: str, tmp_path: Path) -> None:
    assert cli("perplexity", "demo", text, "--ctx", "7").err == "error: --ctx is 8 or more, got 7\n"
    assert cli("perplexity", "demo", text, "--chunks", "0").err == "error: --chunks is 1 or more, got 0\n"
    (tmp_path / "short.txt").write_text("Once")
    result = cli("perplexity", "demo", str(tmp_path / "short.txt"))
    assert (result.code, result.err) == (
        1, "error: the text has 2 tokens, and a chunk takes 512; give a longer text or choose a smaller --ctx\n",
    )  # fmt: skip
    (tmp_path / "empty.txt").touch()
    result = cli("perplexity", "demo", str(tmp_path / "empty.txt"))
    assert (result.code, result.err) == (1, f"error: {tmp_path / 'empty.txt'} is empty; there is nothing to predict\n")
    (tmp_path / "latin.txt").write_bytes("Once\nGrüße".encode("latin-1"))
    result = cli("perplexity", "demo", str(tmp_path / "latin.txt"))
    assert (result.code, result.err) == (
        1, f"error: {tmp_path / 'latin.txt'}: byte 8, in line 2, (0xfc) is not UTF-8; convert the text, for instance "
        "with iconv\n",
    )  # fmt: skip
    missing = str(tmp_path / "none.txt")
    assert cli("perplexity", "demo", missing).err == f"error: {missing}: No such file or directory\n"


def test_an_encoder_predicts_nothing(cli, text: str, tmp_path: Path) -> None:
    bert = str(encoders.converted(encoders.case("bert"), tmp_path))
    result = cli("perplexity", bert, text, "--ctx", "8", "-t", "1")
    assert result.code == 1
    assert result.err.startswith("error: bert reads texts and writes none: ")
    assert result.err.endswith("no answers and no logits\n")
