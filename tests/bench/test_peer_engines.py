"""bench/peers.py engines: engines take turns, those that are missing or fail are named with the reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench import peer_engines, peer_packages, peers
from bench.peer_engines import Engine, Figures, Turns, medians, report
from bench.peer_single import Ask
from bench.peer_tools import Finished
from tests.bench.test_peers import write_program

ASK = Ask("some/llama-1b-q4_k_m.gguf", 512, 64, 2)
MODEL = "llama-1b-q4_k_m.gguf"


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
    result = peer_engines.compare([ASK], 3, list(peer_engines.ENGINES))
    assert turns == ["ollama_engine", "fails", "peer"] * 3
    assert result.left_out == {MODEL: {"absent": "not installed", "fails": "error: no such tensor"}}
    assert [one.prefill_tps for one in result.measured[MODEL]["ollama_engine"]] == [100, 200, 300]
    said = report(result)
    assert said.startswith("medians of 3 rounds in turn, 2 threads")
    assert "Prompts of 512 tokens, tokens/s:" in said
    assert f"| {MODEL} | 200 | 100 | **2.00** |" in said, "the medians"
    assert f"| {MODEL} | 0.50 | 0.50 | **1.00** |" in said
    assert f"- {MODEL}: fails is left out: error: no such tensor" in said


def test_of_several_models_each_has_its_row_and_its_reasons(turns: list[str]) -> None:
    asks = [ASK, replace(ASK, model="b.gguf")]
    result = peer_engines.compare(asks, 1, ["ollama_engine", "absent", "peer"])
    assert turns == ["ollama_engine", "peer"] * 2
    said = report(result)
    assert f"| {MODEL} | 100 | 50 | **2.00** |\n| b.gguf | 200 | 100 | **2.00** |" in said
    assert said.endswith(f"- {MODEL}: absent is left out: not installed\n- b.gguf: absent is left out: not installed")


def test_a_later_call_goes_on(turns: list[str], tmp_path: Path) -> None:
    kept, names = tmp_path / "turns.json", ["ollama_engine", "absent", "fails", "peer"]
    nothing = peer_engines.compare([ASK], 3, names, kept, seconds=-1)
    assert (turns, nothing.measured[MODEL]) == ([], {"ollama_engine": []})
    peer_engines.compare([ASK], 1, names, kept)
    assert turns == ["ollama_engine", "fails", "peer"]
    whole = peer_engines.compare([ASK], 3, names, kept)
    assert turns == ["ollama_engine", "fails", "peer"] * 3, "the first round is not measured again"
    assert peer_engines.Turns.read(kept, whole.setting) == whole
    assert peer_engines.compare([ASK], 3, names, kept) == whole
    assert len(turns) == 9
    with pytest.raises(SystemExit, match="name another file"):
        peer_engines.compare([replace(ASK, generate=8)], 3, names, kept)


def test_behind_a_context_engines_that_cannot_are_left_out(turns: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peer_engines.ENGINES, "ik", Engine(lambda _: figures(1), behind=True))  # type: ignore[misc]
    result = peer_engines.compare([replace(ASK, depth=8192)], 1, ["ik", "peer"])
    assert list(result.measured[MODEL]) == ["ik", "peer"]
    assert not turns
    assert "-d" in result.left_out[MODEL]["peer"]


def test_losses_are_below_one_and_what_is_not_measured_is_a_dash() -> None:
    sides = {"ollama_engine": [figures(100)], "peer": [figures(200, streams=math.nan)], "other": [figures(50)]}
    said = report(Turns({"prompt": 512, "generate": 64, "threads": 2}, {MODEL: sides}, {MODEL: {}}))
    assert f"| {MODEL} | 100 | 200 | 50 | **0.50** |" in said
    assert f"| {MODEL} | 100 | - | 100 | **1.00** |" in said
    assert f"| {MODEL} | 100 | 200 | 50 | **0.50** |" in said.split("Peak memory")[1], "less is better"
    alone = report(Turns({"prompt": 512, "generate": 64, "threads": 2}, {MODEL: {"peer": [figures(200)]}}, {MODEL: {}}))
    assert f"| {MODEL} | 200 | - |" in alone
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


# pip installs llama-benchy and nothing else; `download` brings a source package with these names.
PIP = """#!{python}
import pathlib, sys, tarfile
if "install" in sys.argv:
    sys.exit(0 if "llama-benchy" in sys.argv[-1] else "a warning\\nERROR: no matching distribution for " + sys.argv[-1])
if "download" in sys.argv:
    folder = pathlib.Path(sys.argv[sys.argv.index("-d") + 1])
    folder.mkdir()
    with tarfile.open(folder / "ik-0.1.tar.gz", "w:gz") as archive:
        archive.add({source!r}, arcname={name!r})
if "-c" in sys.argv:
    print("0.4.0")
"""
CMAKE = "#!{python}\nimport sys\nsys.exit(3 if {step!r} in sys.argv else 0)\n"


@pytest.mark.parametrize(
    ("name", "step", "reason"),
    [
        ("ik/vendor/ik_llama.cpp", "-S", "left out: cmake -S ended with 3"),
        ("ik/vendor/ik_llama.cpp", "--build", "left out: cmake --build ended with 3"),
        ("ik/vendor/ik_llama.cpp", "none", "left out: the build left no library"),
        ("ik/sources", "none", "left out: ik-0.1.tar.gz has no vendor/ik_llama.cpp"),
    ],
)
def test_what_does_not_install_is_left_out_with_its_reason(
    name: str, step: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.delenv("IK_LLAMA_LIBRARY", raising=False)
    (tmp_path / "sources").mkdir()
    pip = write_program(tmp_path / "python", PIP, source=str(tmp_path / "sources"), name=name)
    cmake = write_program(tmp_path / "cmake", CMAKE, step=step)
    monkeypatch.setattr(peer_packages, "PYTHON", Path(pip))
    monkeypatch.setattr(peer_packages, "NATIVE", tmp_path / "native")
    monkeypatch.setattr(peer_packages, "find_program", lambda _: cmake)
    peers.main(["install", "--native"])
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0] == "ik-llama-cpp-python: left out: ERROR: no matching distribution for ik-llama-cpp-python<=0.1.5"
    assert lines[3] == "llama-benchy: 0.4.0"
    assert lines[4].startswith(f"ik-native: {reason}")


def test_without_an_environment_nothing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setattr(peer_packages, "FOLDER", tmp_path / "a file" / "venv")
    monkeypatch.setattr(peer_packages, "PYTHON", tmp_path / "a file" / "venv/bin/python")
    assert "left out: " in peer_packages.install(native=True)["venv"]


def test_the_command(turns: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    peers.main(["engines", ASK.model, "-r", "1", "--only", "ollama_engine", "peer", "--json"])
    assert list(json.loads(capsys.readouterr().out)["measured"][MODEL]) == turns == ["ollama_engine", "peer"]
