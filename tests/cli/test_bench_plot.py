"""`bench --plot`: the picture, what it shows by default, and what is refused before anything is measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ollama_engine.cli.measure.bench import plot
from tests.support.tiny import write_tiny_llama


def row(name: str, value: int, prefill: float, decode: float) -> dict[str, Any]:
    samples = {"prefill_tps": [prefill, prefill * 1.02], "decode_tps": [decode * 0.9, decode]}
    return {name: value, "prefill_tps": prefill, "decode_tps": decode, "samples": samples}


def a_result() -> dict[str, Any]:
    return {
        "model": "models/some.gguf", "n_prompt": 512, "n_gen": 128, "threads": 2, "repetitions": 3, "devices": ["CPU"],
        "kv_cache_type": "f16", "version": "9.9", "ggml_version": "8.8",
        "samples": {"prefill_tps": [1.0], "decode_tps": [1.0]},
        "parallel": [row("streams", 8, 240.0, 75.25), row("streams", 1, 230.0, 36.71)],
        "depth": [row("depth", 0, 229.0, 36.5), row("depth", 4096, 1612.5, 27.3)],
    }  # fmt: skip


def texts(path: Path) -> list[str]:
    """What is written in an SVG picture; the texts lie beside their outlines, as comments."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    tree = ElementTree.parse(path, parser)
    return [node.text.strip() for node in tree.iter(ElementTree.Comment) if node.text]


def test_the_picture(tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    plot.draw(a_result(), str(out))
    written = texts(out)
    assert "some.gguf: prompts of 512 tokens, answers of 128" in written
    assert any("CPU, 2 threads, f16 cache" in text for text in written)
    for title in ("decode, all callers together", "decode, one caller", "prefill, all callers together"):
        assert title in written
    assert written.count("tokens/s") == 4
    assert written.count("callers at once") == written.count("tokens in the context before") == 2
    assert {"75.2", "36.7", "240", "230", "27.3", "36.5", "1,612"} <= set(written)
    assert {"0", "1", "8", "4096"} <= set(written)


def test_axes_show_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **settings: figures.append(self))
    plot.draw(a_result(), str(tmp_path / "out.png"))
    panels = figures[0].axes
    assert len(panels) == 4
    for panel in panels:
        assert panel.get_xlim()[0] <= 0
        assert panel.get_ylim()[0] == 0
        line = max(panel.lines, key=lambda line: len(set(line.get_xdata())))
        assert list(line.get_xdata()) == sorted(line.get_xdata()), "the line goes from left to right"


@pytest.mark.parametrize(("absent", "panels"), [("parallel", 2), ("depth", 2)])
def test_what_was_not_measured_is_not_drawn(absent: str, panels: int, tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    plot.draw({**a_result(), absent: []}, str(out))
    assert texts(out).count("tokens/s") == panels


@pytest.mark.parametrize(
    ("values", "gap", "kept"),
    [
        ([1, 2, 4, 8], 0.1, [1, 2, 4, 8]),
        ([1, 2, 4, 8, 16, 32, 64], 0.1, [1, 8, 16, 32, 64]),
        ([0, 256, 4096], 0.09, [0, 4096]),
        ([0], 0.1, [0]),
        ([5, 5], 0.1, [5]),
    ],
)
def test_numbers_have_room(values: list[int], gap: float, kept: list[int]) -> None:
    assert plot.apart(values, gap) == kept


# -- the command -------------------------------------------------------------------------------------------------------

SHORT = ["-p", "8", "-n", "2", "-r", "1", "-t", "1", "--no-warmup"]


def test_by_default_callers_and_depths_as_far_as_trained(cli, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny.gguf", n_ctx=512).path
    out = tmp_path / "out.png"
    result = cli("bench", model, *SHORT, "--plot", str(out))
    assert result.code == 0
    assert result.err.startswith("drawn: ")
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    streams, depths = ([line.split()[0] for line in part.splitlines()] for part in result.out.split("\n\n")[-2:])
    assert streams == ["streams", "1", "2", "4", "8"]
    assert depths == ["depth", "0", "256"]


def test_what_was_asked_for_is_drawn_alone(cli, tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "out.svg"
    result = cli("bench", tiny, *SHORT, "--plot", str(out), "--depth", "0,5")
    assert result.code == 0
    assert result.err.startswith("drawn: ")
    assert "streams" not in result.out
    assert "callers at once" not in texts(out)


@pytest.fixture
def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: object) -> None:
        raise AssertionError("the picture is checked first")

    monkeypatch.setattr("ollama_engine.cli.measure.bench.command.load", load)


@pytest.mark.usefixtures("_nothing_is_loaded")
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("out.gguf", 2, "--plot writes a file whose name ends in .png, .svg, .pdf; got 'out.gguf'"),
        ("out", 2, "got 'out'"),
        ("absent/out.png", 1, "absent: No such file or directory"),
    ],
)
def test_what_cannot_be_written(
    cli, tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli("bench", tiny, "--plot", name)
    assert (result.code, result.out) == (code, "")
    assert message in result.err


@pytest.mark.usefixtures("_nothing_is_loaded")
def test_without_matplotlib(cli, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = cli("bench", tiny, "--plot", "out.png")
    assert (result.code, result.out) == (2, "")
    assert result.err == "error: --plot needs matplotlib: pip install matplotlib\n"
