"""`bench` of one caller: the JSON object, the table, parts left out, and the memory figure."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ollama_engine import __version__
from ollama_engine.cli.measure import bench
from ollama_engine.cli.measure.bench import parts
from ollama_engine.cli.progress import StatusLine
from ollama_engine.ml.device.placement import usable_cpus
from ollama_engine.ml.ops.small_batch import small_batch_instructions
from ollama_engine.ml.threads import thread_pools
from ollama_engine.ml.weights import kernel_samples
from tests.cli.program import json_of
from tests.support.tiny import write_tiny_llama

KEYS = {
    "prefill_tps", "decode_tps", "load_seconds", "peak_rss_bytes", "model", "architecture", "threads", "version",
    "ggml_version", "n_prompt", "n_gen", "repetitions", "warmup", "samples", "num_ctx", "batch_size",
    "flash_attention", "kv_cache_type", "mmap", "devices", "memory", "graphs", "threads_in_use",
    "parallel", "depth",
}  # fmt: skip


def measured(cli, *args: str) -> dict[str, Any]:
    return json_of(cli, "bench", *args)


def test_the_json_object(cli, tiny: str) -> None:
    result = measured(cli, tiny, "-p", "24", "-n", "6", "-t", "1", "-r", "3", "--kv-cache-type", "f32")
    assert set(result) == KEYS
    for name in ("prefill_tps", "decode_tps"):
        speeds = result["samples"][name]
        assert len(speeds) == 3
        assert result[name] == statistics.median(speeds) > 0
    assert result["load_seconds"] > 0
    assert result["peak_rss_bytes"] > 1 << 20
    told = ("model", "threads", "version", "n_prompt", "n_gen", "repetitions", "warmup", "num_ctx", "kv_cache_type")
    assert [result[key] for key in told] == [tiny, 1, __version__, 24, 6, 3, True, 256, "f32"]
    assert result["devices"][-1] == "CPU"
    assert (result["parallel"], result["depth"]) == ([], [])
    # Each part builds one graph; the decode warm-up has one token, all other runs have all of them.
    assert result["graphs"] == {"built": 2, "reused": (4 - 1) + (1 + 3 * 6 - 1)}


@pytest.mark.parametrize(
    ("args", "absent", "graphs"),
    [
        (["-p", "8", "-n", "0", "-r", "1", "--no-warmup", "-t", "1"], "decode_tps", {"built": 1, "reused": 0}),
        (["-p", "0", "-n", "3", "-r", "1", "--no-warmup", "-t", "1"], "prefill_tps", {"built": 1, "reused": 2}),
    ],
)
def test_a_part_left_out_is_null(cli, tiny: str, args: list[str], absent: str, graphs: dict[str, int]) -> None:
    result = measured(cli, tiny, *args)
    present = {"prefill_tps", "decode_tps"} - {absent}
    assert result[absent] is None
    assert result["samples"][absent] == []
    assert all(result[name] > 0 for name in present)
    assert result["graphs"] == graphs


@pytest.mark.parametrize(("n_prompt", "n_gen", "num_ctx"), [(1, 0, 256), (512, 128, 768), (256, 0, 256), (1, 256, 512)])
def test_the_context_has_room_for_both(n_prompt: int, n_gen: int, num_ctx: int) -> None:
    assert bench.BenchPlan(n_prompt, n_gen, 1, True).num_ctx == num_ctx


def test_a_prompt_longer_than_a_batch(cli, tiny: str) -> None:
    result = measured(
        cli, tiny, "-p", "40", "-n", "0", "-r", "1", "-t", "1", "--batch-size", "16", "--flash-attention", "off"
    )
    assert (result["batch_size"], result["flash_attention"]) == (16, False)


def test_the_table(cli, tiny: str) -> None:
    result = cli("bench", tiny, "-p", "8", "-n", "2", "-r", "1", "-t", "1")
    assert (result.code, result.err) == (0, "")
    first = [line.split()[0] for line in result.out.splitlines() if line]
    assert first == [
        "model", "load", "peak", "threads", "flash", "cache", "batch", "graphs", "measured", "version", "test",
        "prefill", "decode",
    ]  # fmt: skip
    assert "decode" not in cli("bench", tiny, "-p", "8", "-n", "0", "-r", "1", "-t", "1").out


class Busy:
    """A governor on a machine that is always busy."""

    probe = 0
    threads = 1

    def __init__(self, most: int, cpu_use: object) -> None:
        pass

    def begin(self, now: float, waiting: int | None) -> int:
        return self.threads

    def observe(self, now: float, computed: float, waited: float, spare: float | None) -> int:
        return self.threads


@pytest.mark.skipif(usable_cpus() < 2, reason="one CPU: there is one thread")
def test_a_machine_that_stays_busy_is_named(cli, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pools, "ThreadGovernor", Busy)
    monkeypatch.setattr(parts, "SETTLING", 0.0)
    args = (tiny, "-p", "24", "-n", "2", "-t", "2", "-r", "1")
    assert measured(cli, *args)["threads_in_use"] == 1
    assert "2, as few as 1 computed: the machine was busy" in cli("bench", *args).out


def test_more_tokens_than_a_context_can_have_is_wrong_usage(cli, tiny: str) -> None:
    result = cli("bench", tiny, "-p", str(1 << 30))
    assert result.code == 2
    assert "error: -p, -n and the largest --depth are 16777216 together at most" in result.err


# -- memory ------------------------------------------------------------------------------------------------------------


def test_peak_memory_comes_from_the_process_status(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n", encoding="ascii")
    assert bench.peak_rss_bytes(status) == 2048 * 1024


def test_peak_memory_without_a_process_status(tmp_path: Path) -> None:
    peak = bench.peak_rss_bytes(tmp_path / "absent")
    assert peak is not None
    assert peak > 1 << 20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_peak_memory_is_not_inherited() -> None:
    code = "from ollama_engine.cli.measure.bench import peak_rss_bytes; print(peak_rss_bytes())"
    ballast = b"x" * (160 << 20)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert len(ballast) > int(done.stdout) > 1 << 20


@pytest.mark.skipif(len(small_batch_instructions("q8_0")) < 2, reason="this CPU has no kernels but plain C")
def test_kernels_of_the_types_of_a_model(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One type, on made-up weights that are small for once."""
    monkeypatch.setattr(kernel_samples, "last_level_cache", lambda: 0)
    monkeypatch.setattr(kernel_samples, "SAMPLE_BYTES", 1 << 18)
    path = tmp_path / "tiny.gguf"
    write_tiny_llama(path, dtype="q8_0")
    shown: list[str] = []
    monkeypatch.setattr(StatusLine, "show", lambda _, text: shown.append(text))
    rows = measured(cli, str(path), "--kernels", "-t", "1")["kernels"]
    assert shown == [f"kernels of q8_0{experts}, 8 s each at most" for experts in (": 1 of 2", " experts: 2 of 2")]
    assert [(row["dtype"], row["rows"], row["experts"]) for row in rows] == [
        ("q8_0", n, experts) for experts in (False, True) for n in (1, 2, 4, 8, 16)
    ]
    assert all({"read", "spread", "burst", "l2", "none", "ggml"} <= set(row["gb_per_second"]) for row in rows)
    table = cli("bench", str(path), "--kernels", "-t", "1").out
    assert all(row["chosen"] in row["gb_per_second"] for row in rows)
    for line in re.findall(r"^q8_0 .+$", table, flags=re.MULTILINE):
        assert re.fullmatch(r"q8_0( experts)? +\d+ +[\d.* -]+ \d+\.\d\d +\d+\.\d\d", line)
        assert line.count("*") == 1, "one is chosen"
    assert re.search(r"^\* +what an engine takes here", table, flags=re.MULTILINE)


def test_what_was_measured_once_says_so(cli) -> None:
    """There is no least and no most of it."""
    once = cli("bench", "demo", "-p", "8", "-n", "2", "-r", "1", "-t", "1").out
    assert re.search(r"^prefill 8 +[\d.]+ +- +-$", once, flags=re.MULTILINE)
    assert re.search(r"^measured +once \(-r 1\), so how far", once, flags=re.MULTILINE)
    twice = cli("bench", "demo", "-p", "8", "-n", "2", "-r", "2", "-t", "1").out
    assert re.search(r"^prefill 8 +[\d.]+ +[\d.]+ +[\d.]+$", twice, flags=re.MULTILINE)
    assert "measured" not in twice


def test_a_model_or_kernels(cli) -> None:
    assert "bench measures a MODEL, or --kernels" in cli("bench").err
