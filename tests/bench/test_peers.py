"""bench/peers.py: the comparisons, run against small programs that answer like the real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import peer_llama, peer_streams, peer_tools, peers
from bench.peer_streams import Speeds
from ollama_engine import SamplingParams, demo
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.tokenizer import from_metadata

# Memory of 64 MiB, a speed that depends on the round, and the fields that are read.
OURS = """#!{python}
import json, pathlib, sys
rounds = pathlib.Path({counter!r})
n = len(rounds.read_text()) if rounds.exists() else 0
rounds.write_text("x" * (n + 1))
ballast = bytearray(b"x") * (64 << 20)
assert sys.argv[1] == "bench" and "--json" in sys.argv, sys.argv
# A machine that is busy, or becomes free before the third full run.
used = 1 if "busy" in sys.argv[2] or ("waking" in sys.argv[2] and n < 3) else int(sys.argv[sys.argv.index("-t") + 1])
samples = {{"threads_in_use": [2, used]}}
depth = [{{"depth": int(sys.argv[i + 1]), "prefill_tps": 7.0, "decode_tps": 3.0, "samples": samples}}
         for i, word in enumerate(sys.argv) if word == "--depth"]
caches = {{"f16": 0, "q8_0": 1000.0}}
n += caches[sys.argv[sys.argv.index("--kv-cache-type") + 1]]
print(json.dumps({{"prefill_tps": 100.0 + n, "decode_tps": 20.0, "load_seconds": 0.25, "samples": samples,
                  "depth": depth}}))
"""
PEER = """#!{python}
import json, sys
quantized = sys.argv.count("q8_0") == sys.argv.count("-ctk") + sys.argv.count("-ctv")
tests = [(16, 0, 2000.0 if quantized else 50.0), (0, 4, 40.0)]
print(json.dumps([{{"n_prompt": p, "n_gen": g, "avg_ts": s, "samples_ns": [1000]}} for p, g, s in tests]))
"""


def write_program(path: Path, text: str, **fields: str) -> str:
    path.write_text(text.format(python=sys.executable, **fields))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def _programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = write_program(tmp_path / "ollama-engine", OURS, counter=str(tmp_path / "counter"))
    monkeypatch.setattr(peer_tools, "find_program", lambda name: ours)
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


@pytest.mark.parametrize(
    ("model", "again", "named", "speed"),
    [("model.gguf", 0, False, 101), ("waking.gguf", 2, False, 103), ("busy.gguf", 2, True, 103)],
)
@pytest.mark.usefixtures("_programs")
def test_a_run_with_too_few_threads_is_made_again(
    model: str, again: int, named: bool, speed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    peers.main(["compare", model, "-r", "1", "-t", "2", "--json"])
    out, err = capsys.readouterr()
    assert err.count("computed with 1 of 2 threads, once more") == again
    assert ("threads, so this compares no engines" in err) == named
    assert json.loads(out)["ours"]["prefill_tps"] == speed


@pytest.mark.usefixtures("_programs")
def test_compare_behind_a_context(capsys: pytest.CaptureFixture[str]) -> None:
    peers.main(["compare", "model.gguf", "-r", "1", "-d", "4096", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert (result["depth"], result["ours"]["prefill_tps"], result["ours"]["decode_tps"]) == (4096, 7.0, 3.0)
    with pytest.raises(SystemExit, match="for one stream"):
        peers.main(["compare", "model.gguf", "-d", "4096", "--parallel", "1,2"])


@pytest.mark.usefixtures("_programs")
def test_compare_with_a_cache_of_another_type(capsys: pytest.CaptureFixture[str]) -> None:
    peers.main(["compare", "model.gguf", "-r", "1", "--cache", "q8_0", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["cache"] == "q8_0"
    assert (result["ours"]["prefill_tps"], result["llama_cpp"]["prefill_tps"]) == (1101.0, 2000.0)


# -- several callers ---------------------------------------------------------------------------------------------------

# Twice the peer's speed for prompts and half of it for answers; a round slower each time.
OURS_STREAMS = """#!{python}
import json, pathlib, sys
rounds = pathlib.Path({counter!r})
n = len(rounds.read_text()) if rounds.exists() else 0
rounds.write_text("x" * (n + 1))
asked = sys.argv[1:]
assert asked[0] == "bench" and "--json" in asked, asked
assert asked[asked.index("-p") + 1 : asked.index("-p") + 4 : 2] == ["300", "64"], asked
widths = [int(width) for width in asked[asked.index("--parallel") + 1].split(",")]
rows = [{{"streams": w, "prefill_tps": 200.0 - n, "decode_tps": 20.0 * w}} for w in widths]
print(json.dumps({{"prefill_tps": 1, "decode_tps": 1, "parallel": rows}}))
"""
PEER_STREAMS = """#!{python}
import json, sys
asked = sys.argv[1:]
value = lambda name: asked[asked.index(name) + 1]
assert (value("-npp"), value("-ntg"), value("--output-format")) == ("300", "64", "jsonl"), asked
assert value("-c") == str(512 * 4), asked
assert value("-ctk") == value("-ctv") == "f16", asked
unified = "--kv-unified" in asked
assert unified != ("--no-kv-unified" in asked), asked
print("a line of the log")
for width in value("-npl").split(",")[:{n_widths}]:
    prompts, answers = (100.0, 30.0) if unified else (90.0, 40.0)
    print(json.dumps({{"pl": int(width), "speed_pp": prompts, "speed_tg": answers * int(width)}}))
print("")
"""


def streams_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_widths: int) -> None:
    ours = write_program(tmp_path / "ollama-engine", OURS_STREAMS, counter=str(tmp_path / "counter"))
    monkeypatch.setattr(peer_tools, "find_program", lambda name: ours)
    peer = write_program(tmp_path / "llama-batched-bench", PEER_STREAMS, n_widths=str(n_widths))
    monkeypatch.setenv("LLAMA_BATCHED_BENCH", peer)


STREAMS = ["compare", "some/model.gguf", "-p", "300", "-n", "64", "-t", "1", "-r", "3", "--parallel", "1,4"]


def test_compare_streams_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streams_programs(tmp_path, monkeypatch, 2)
    peers.main([*STREAMS, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert [result[key] for key in ("model", "prompt", "generate", "threads", "repetitions")] == [
        "model.gguf", 300, 64, 1, 3,
    ]  # fmt: skip
    assert result["parallel"][1] == {
        "streams": 4,
        "ours": {"prefill_tps": 199.0, "decode_tps": 80.0},
        "llama_cpp": {"prefill_tps": 90.0, "decode_tps": 160.0},
        "llama_cpp_unified": {"prefill_tps": 100.0, "decode_tps": 120.0},
        "ratio": {"prefill_tps": 1.99, "decode_tps": 0.5},
    }
    assert [row["streams"] for row in result["parallel"]] == [1, 4]


def test_compare_streams_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    streams_programs(tmp_path, monkeypatch, 2)
    peers.main(STREAMS)
    out = capsys.readouterr()
    title, prefill, decode = out.out.rstrip("\n").split("\n\n")
    assert title == "model.gguf, 300 + 64 tokens a stream, 1 threads"
    assert prefill.splitlines()[-1] == "| 4 | 199.00 | 90.00 | 100.00 | 1.99 | 1.00 |"
    assert decode.splitlines()[-2:] == [
        "| 1 | 20.00 | 40.00 | 30.00 | 0.50 | 1.00 |",
        "| 4 | 80.00 | 160.00 | 120.00 | 0.50 | 4.00 |",
    ]
    turns = [line.split()[-1] for line in out.err.splitlines()]
    assert turns == ["ours", "llama_cpp", "llama_cpp_unified"] * 3


def test_a_width_that_the_peer_leaves_out_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams_programs(tmp_path, monkeypatch, 1)
    with pytest.raises(SystemExit, match=r"measured \[1\] streams instead of \[1, 4\]"):
        peers.main(STREAMS)


@pytest.mark.parametrize("widths", ["0,1", "x", "", "2,2"])
def test_widths_that_make_no_sense(widths: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        peers.main(["compare", "m.gguf", "--parallel", widths])
    assert "expected different numbers of streams such as 1,2,4,8" in capsys.readouterr().err


def test_medians_of_streams() -> None:
    assert peer_streams.medians([Speeds(3.0, 10.0), Speeds(1.0, 30.0), Speeds(2.0, 20.0)]) == Speeds(2.0, 20.0)


# -- tools -------------------------------------------------------------------------------------------------------------


def test_it_runs_as_a_program(tmp_path: Path) -> None:
    program = str(peer_tools.ROOT / "bench/peers.py")
    done = subprocess.run(
        [sys.executable, program, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert "compare" in done.stdout


def test_a_failing_program_is_quoted(tmp_path: Path) -> None:
    program = write_program(tmp_path / "broken", "#!{python}\nimport sys\nsys.exit('no such model')\n")
    with pytest.raises(SystemExit, match=r"broken ended with 1\nno such model"):
        peer_tools.run([program])


def test_a_program_ended_by_a_signal(tmp_path: Path) -> None:
    program = write_program(tmp_path / "killed", "#!{python}\nimport os\nos.kill(os.getpid(), 9)\n")
    with pytest.raises(SystemExit, match="ended with -9"):
        peer_tools.run([program])


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peer_tools.cache_folder("0123456789abcdef" * 4) == tmp_path / "ollama_engine/peers/0123456789abcdef"


def test_tools_that_are_built_already(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMA_BENCH", raising=False)
    lock = peer_tools.load_fetch().read_lock(peer_tools.ROOT / "csrc/ggml/ggml.lock")
    folder = peer_tools.cache_folder(lock["sha256"]) / "source/build/bin"
    folder.mkdir(parents=True)
    for tool in peer_tools.TOOLS:
        (folder / tool).touch()
    assert peer_tools.tool("llama-bench") == str(folder / "llama-bench")
    assert peer_tools.built("build/bin/llama-bench") == folder / "llama-bench"
    assert peer_tools.has_tool("llama-bench")


def test_what_is_not_built_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LLAMA_BENCH", raising=False)
    assert not peer_tools.has_tool("llama-bench")
    assert peer_llama.find(tmp_path) is None
    assert peer_llama.vocabulary("llama-bpe") is None
    monkeypatch.setenv("LLAMA_BENCH", "/some/llama-bench")
    assert peer_tools.has_tool("llama-bench")


def test_llama_cpp_in_this_process(tmp_path: Path) -> None:
    llama = peer_llama.find(tmp_path)
    if llama is None:
        pytest.skip(peer_llama.MISSING)
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    with llama.chain(SamplingParams(temperature=0), 1000) as chain:
        assert llama.sample(chain, logits) == np.argmax(logits)
    with llama.chain(SamplingParams(top_k=3, top_p=1.0), 1000) as chain:
        assert {llama.sample(chain, logits) for _ in range(200)} == set(np.argsort(logits)[-3:].tolist())
    path, ids = str(demo.path()), np.empty(100, np.int32)
    with llama.model(path, vocab_only=True) as model, GGUFFile(path) as file:
        n = llama.tokenize(model, b"Once upon a time", ids)
        assert ids[:n].tolist() == from_metadata(file.metadata).encode("Once upon a time", add_special=False)
        with pytest.raises(ValueError, match="do not fit into 1"):
            llama.tokenize(model, b"Once upon a time", ids[:1])
    with pytest.raises(OSError, match="does not load"), llama.model("/nowhere.gguf"):
        pass
