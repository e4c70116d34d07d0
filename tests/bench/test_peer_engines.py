"""bench/peers.py engines: engines take turns, those that are missing or fail are named with the reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench import peer_engines, peer_packages, peers
from bench.peer_engines import Engine, Figures, medians, report
from bench.peer_single import Ask
from bench.peer_tools import Finished

ASK = Ask("some/llama-1b-q4_k_m.gguf", 512, 64, 2)


def figures(speed: float, *, streams: float = 100.0) -> Figures:
    return Figures(speed, speed / 10, streams, 0.5, 2**20 * speed)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engines in the order in which they are measured; the third round of `fails` fails."""
    order: list[str] = []

    def engine(name: str, speed: float) -> Engine:
        def measure(_: Ask) -> Figures:
            order.append(name)
            if name == "fails" and order.count(name) == 3:
                raise SystemExit("peers: program ended with 1\nerror: no such tensor\ndetached")
            return figures(speed * order.count(name))

        return Engine(measure)

    monkeypatch.setattr(peer_engines, "ENGINES", {
        "ollama_engine": engine("ollama_engine", 100), "fails": engine("fails", 1),
        "absent": Engine(lambda _: figures(1), lambda _: "not installed"),
        "peer": engine("peer", 50),
    })  # fmt: skip
    return order


def test_engines_take_turns_and_reasons_are_given(turns: list[str]) -> None:
    result = peer_engines.compare(ASK, 3, list(peer_engines.ENGINES))
    assert turns == ["ollama_engine", "fails", "peer"] * 3
    assert result["left_out"] == {"absent": "not installed", "fails": "error: no such tensor"}
    assert result["engines"]["ollama_engine"]["prefill_tps"] == 200
    table = report(result)
    assert "| peer | 100.0 (2.00) | 10.0 (2.00) | 100.0 (1.00) | 0.50 (1.00) | 100 (0.50) |" in table
    assert "- fails is left out: error: no such tensor" in table


def test_behind_a_context_engines_that_cannot_are_left_out(turns: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peer_engines.ENGINES, "ik", Engine(lambda _: figures(1), behind=True))  # type: ignore[misc]
    result = peer_engines.compare(replace(ASK, depth=8192), 1, ["ik", "peer"])
    assert list(result["engines"]) == ["ik"]
    assert "-d" in result["left_out"]["peer"]


def test_losses_are_below_one_and_what_is_not_measured_is_a_dash() -> None:
    sides = {"ollama_engine": figures(100), "peer": figures(200, streams=math.nan)}
    result = {
        "model": "m", "prompt": 512, "generate": 64, "left_out": {},
        "engines": {name: vars(side) for name, side in sides.items()},
    }  # fmt: skip
    assert "| peer | 200.0 (0.50) | 20.0 (0.50) | - | 0.50 (1.00) | 200 (2.00) |" in report(result)
    assert medians([figures(1), figures(5), figures(3)]) == figures(3)


def test_a_package_is_run_by_the_python_of_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def run(command: list[str], added: dict[str, str]) -> Finished:
        commands.append((command, added))
        printed = json.dumps({"load_seconds": 1.0, "prefill_tps": 10.0, "decode_tps": float(len(commands))})
        return Finished(f"a line of its own\n{printed}\n", "", 1.0, 7)

    monkeypatch.setattr(peer_engines, "run", run)
    one = peer_engines.measure_package(ASK, "ik", "--flash", "--repack", library=Path("lib.so"))
    assert one == Figures(10.0, 1.0, 2.0, 1.0, 7)
    (single, added), (several, _) = commands
    assert single[0] == str(peer_packages.PYTHON)
    assert single[2:4] == ["ik", ASK.model]
    assert added == {"IK_LLAMA_CPP_LIB_PATH": "lib.so"}
    assert "--flash" in single
    assert "--flash" not in several
    assert several[-2:] == ["--streams", "8"]


def test_what_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peer_packages, "PYTHON", tmp_path / "python")
    assert "peers.py install" in peer_packages.missing("ik")
    monkeypatch.setenv("IK_LLAMA_LIBRARY", str(tmp_path / "none"))
    assert "--native" in peer_engines.missing_native(ASK)
    assert "llama-like shapes" in peer_engines.missing_int4(Ask("other.gguf", 1, 1, 1))
    assert peer_engines.shape_of(ASK) == "llama-1b"


def test_the_command(turns: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    peers.main(["engines", ASK.model, "-r", "1", "--only", "ollama_engine", "peer", "--json"])
    assert list(json.loads(capsys.readouterr().out)["engines"]) == turns == ["ollama_engine", "peer"]
