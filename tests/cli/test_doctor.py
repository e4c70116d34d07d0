from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import ollama_engine
from ollama_engine import Engine, SamplingParams, demo, user_cache
from ollama_engine.cli.measure.doctor import _instruction_sets
from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.weights.kernel_choice import BY_TABLE
from ollama_engine.ml.weights.kernel_variants import FewRows
from ollama_engine.runner.load.kernels import timings_file
from ollama_engine.size_texts import size
from tests.cli.conftest import Result
from tests.store.layout import put_blob, put_model

LIBRARY = "registry.ollama.ai/library"
Cli = Callable[..., Result]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    return tmp_path


def test_report(cli: Cli, root: Path) -> None:
    put_model(root, f"{LIBRARY}/m/latest", [("model", b"GGUF")], {})
    told = cli("doctor", "demo", "-t", "1", "--num-ctx", "64")
    assert told.code == 0
    assert f"version   {ollama_engine.__version__}" in told.out
    assert f"store {root}: 1 model, 6 B\n  no blob is missing; --verify reads them all" in told.out
    assert f"{demo.path()} fits, with num_ctx 64:" in told.out
    assert "-m ollama_engine.selftest` shows whether" in told.out
    labels = [line.split("  ")[0] for line in told.out.partition("\n\n")[0].splitlines()]
    assert len(labels) == len(set(labels)), "two lines have one name"
    report = json.loads(cli("doctor", "--json", "--verify").out)
    assert report["store"] == {
        "folder": str(root), "models": 1, "size": 6, "problems": [], "leftovers": 0, "verified": True,
    }  # fmt: skip
    assert report["devices"][0]["used"]


def test_a_store_with_damage(cli: Cli, root: Path) -> None:
    put_model(root, f"{LIBRARY}/good/latest", [("model", b"GGUF good")])
    put_model(root, f"{LIBRARY}/bad/latest", [("model", b"GGUF bad")])
    put_model(root, f"{LIBRARY}/gone/latest", [("model", b"GGUF gone")])
    bad, gone = (put_blob(root, data)["digest"] for data in (b"GGUF bad", b"GGUF gone"))
    (root / "blobs" / bad.replace(":", "-")).write_bytes(b"GGUF BAD")
    (root / "blobs" / gone.replace(":", "-")).unlink()
    unreadable = root / "manifests" / LIBRARY / "other" / "latest"
    unreadable.parent.mkdir()
    unreadable.write_bytes(b"no")
    quick, whole = cli("doctor").out, cli("doctor", "--verify").out
    for told in (quick, whole):
        assert f"blob {gone} is missing; pull or create the model again (of gone:latest)" in told
        assert f"{unreadable} is no manifest" in told
        assert "good" not in told
    assert bad not in quick
    assert f"blob {bad} is damaged: its content has another digest; remove {root / 'blobs'}" in whole
    assert whole.count("(of bad:latest)") == 1


def test_measured_kernels(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_cache, "cache_folder", lambda: root / "cache")
    assert "built-in table; none was measured yet" in cli("doctor", "-t", "1").out
    file = timings_file(1)
    file.write({FewRows("q4_0", 1, False): {"spread": 1.0, "l2": 0.5}})
    assert f"kernels, measured ({file.path}):\n" in cli("doctor", "-t", "1").out
    told = json.loads(cli("doctor", "-t", "1", "--json").out)["kernels"]
    assert told["file"] == str(file.path)
    assert told["chosen"] == (["q4_0: l2 for 1 rows"] if "q4_0" in BY_TABLE.borders else [])
    file.path.write_bytes(b"{")
    assert f"built-in table: {file.path} is damaged" in cli("doctor", "-t", "1").out


def test_stored_prefixes(cli: Cli, root: Path) -> None:
    folder = root / "prefixes"
    with Engine(demo.path(), num_ctx=600, threads=1, prefix_store=folder) as engine:
        engine.generate("A fox. " * 120, SamplingParams(max_tokens=1))
    for _ in range(2):
        with Engine(demo.path(), num_ctx=600, threads=1, prefix_store=folder) as engine:
            engine.generate("A fox. " * 120, SamplingParams(max_tokens=1))
            assert engine.metrics.prefix_store_read_tokens > 0
    report = json.loads(cli("doctor", "--prefix-store", str(folder), "--json").out)["prefixes"]
    assert (report["folder"], report["models"], report["hits"]) == (str(folder), 1, 2)
    assert (
        f"prefix store: {size(report['size'])} of 1 model in {folder}, from which 2 prompts went on"
        in cli("doctor", "--prefix-store", str(folder)).out
    )
    (model,) = json.loads(cli("cache", "ls", "--folder", str(folder), "--json").out)
    assert (model["model"], model["size"], model["hits"]) == (Path(demo.path()).name, report["size"], 2)
    assert model["id"][:12] in cli("cache", "ls", "--folder", str(folder)).out
    assert "0 damaged and removed" in cli("cache", "verify", "--folder", str(folder)).out
    path, *others = folder.rglob("*.0")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    verified = cli("cache", "verify", "--folder", str(folder))
    assert "1 damaged and removed" in verified.out
    assert "its checksum does not fit" in verified.err
    assert not path.exists()
    assert cli("cache", "rm", "--folder", str(folder)).code == 2
    assert "nothing is stored under zz" in cli("cache", "rm", "zz", "--folder", str(folder)).err
    assert f": {len(others)} blocks" in cli("cache", "rm", model["id"][:6], "--folder", str(folder)).out
    assert json.loads(cli("cache", "ls", "--folder", str(folder), "--json").out) == []


def test_leftovers(cli: Cli, root: Path) -> None:
    put_model(root, f"{LIBRARY}/m/latest", [("model", b"GGUF")])
    put_blob(root, b"nobody's" * 1000)
    assert "are unused; ollama-engine rm --unused frees them" in cli("doctor").out


def test_a_model_that_does_not_fit(cli: Cli, root: Path) -> None:
    told = cli("doctor", "demo", "--num-ctx", "4000000", "--parallel", "100")
    assert told.code == 0
    assert f"{demo.path()} cannot be loaded: " in told.out
    assert cli("doctor", "nothing").code == 1


def test_a_device_that_does_not_exist(cli: Cli, root: Path) -> None:
    told = cli("doctor", "--device", "CUDA7")
    assert told.code == 2
    assert "--device names 'CUDA7', which does not exist; there are: " in told.err


def test_why_an_instruction_set_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    device = Device("CPU", "cpu", "CPU", 0, "", 0, 0, features={"AVX": "1", "AVX2": "1"})
    found = _instruction_sets((device,), {"avx", "avx2", "avx512f"})
    assert (found["AVX2"], "NEON" in found) == ("used", False)
    assert found["AVX512"] == "this CPU has it, but the build or the system does not let it be used"
    assert found["FMA"] == "this CPU does not have it"
    assert found["F16C"] == _instruction_sets((device,), set())["F16C"]
    assert "not known" in _instruction_sets((device,), None)["FMA"]
