"""bench/peers.py: the comparison, run against two small programs that answer like the real ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import peers

# Memory of 64 MiB, a speed that depends on the round, and the fields that are read.
OURS = """#!{python}
import json, pathlib, sys
rounds = pathlib.Path({counter!r})
n = len(rounds.read_text()) if rounds.exists() else 0
rounds.write_text("x" * (n + 1))
ballast = bytearray(b"x") * (64 << 20)
assert sys.argv[1] == "bench" and "--json" in sys.argv, sys.argv
print(json.dumps({{"prefill_tps": 100.0 + n, "decode_tps": 20.0, "load_seconds": 0.25}}))
"""
PEER = """#!{python}
import json
tests = [(16, 0, 50.0), (0, 4, 40.0)]
print(json.dumps([{{"n_prompt": p, "n_gen": g, "avg_ts": s, "samples_ns": [1000]}} for p, g, s in tests]))
"""


def write_program(path: Path, text: str, **fields: str) -> str:
    path.write_text(text.format(python=sys.executable, **fields))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = write_program(tmp_path / "ollama-engine", OURS, counter=str(tmp_path / "counter"))
    monkeypatch.setattr(peers, "find_program", lambda name: ours)
    monkeypatch.setenv("LLAMA_BENCH", write_program(tmp_path / "llama-bench", PEER))


@pytest.mark.usefixtures("_programs")
def test_compare_json(capsys: pytest.CaptureFixture[str]) -> None:
    peers.main(["compare", "some/model.gguf", "-p", "16", "-n", "4", "-t", "1", "-r", "3", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["model"], result["repetitions"], result["threads"]) == ("model.gguf", 3, 1)
    # Each round starts ours twice; the full runs are numbers 1, 3 and 5.
    assert result["ours"]["prefill_tps"] == 103.0
    assert (result["ours"]["decode_tps"], result["ours"]["load_seconds"]) == (20.0, 0.25)
    assert result["ours"]["peak_rss_bytes"] >= 64 << 20
    assert (result["llama_cpp"]["prefill_tps"], result["llama_cpp"]["decode_tps"]) == (50.0, 40.0)
    assert 0 < result["llama_cpp"]["load_seconds"] < result["llama_cpp"]["short_run_seconds"]


@pytest.mark.usefixtures("_programs")
def test_compare_table(capsys: pytest.CaptureFixture[str]) -> None:
    peers.main(["compare", "model.gguf", "-r", "1"])
    table = capsys.readouterr().out.splitlines()
    assert table[2] == "| prefill, tokens/s | 101.0 | 50.0 | 2.02 |"
    assert table[3] == "| decode, tokens/s | 20.00 | 40.00 | 0.50 |"
    assert [line.split("|")[1].strip() for line in table[4:]] == ["load, s", "short run, s", "peak memory, MiB"]


def test_a_failing_program_is_quoted(tmp_path: Path) -> None:
    program = write_program(tmp_path / "broken", "#!{python}\nimport sys\nsys.exit('no such model')\n")
    with pytest.raises(SystemExit, match=r"broken ended with 1\nno such model"):
        peers.run([program])


def test_a_program_ended_by_a_signal(tmp_path: Path) -> None:
    program = write_program(tmp_path / "killed", "#!{python}\nimport os\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(SystemExit, match="ended with -9"):
        peers.run([program])


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peers.cache_folder("0123456789abcdef" * 4) == tmp_path / "ollama_engine/peers/0123456789abcdef"


def test_tools_that_are_built_already(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMA_BENCH", raising=False)
    lock = peers.load_fetch().read_lock(peers.ROOT / "csrc/ggml/ggml.lock")
    folder = peers.cache_folder(lock["sha256"]) / "source/build/bin"
    folder.mkdir(parents=True)
    for tool in peers.TOOLS:
        (folder / tool).touch()
    assert peers.llama_bench() == str(folder / "llama-bench")
