"""bench/kernel_choice.py: what its lines say of measured times, and that it measures each kernel that is there."""

from __future__ import annotations

from bench.kernel_choice import Question, lines, measure
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.ops.small_batch import small_batch_instructions

TINY = ((256, 64),)


def test_lines() -> None:
    found = [{"ours": 1e-6, "ggml": 2e-6, "repacked": 4e-6}, {"ours": 4e-6, "ggml": 2e-6, "repacked": 3e-6}]
    said = list(lines(Question("q6_K", TINY, None), 2, (1, 2), found, "us", "avx2"))
    assert said[0] == f"| q6_K | 2 | ours, {small_batch_instructions('q6_K')[-1]} | 1 | 4 |"
    assert said[1:] == ["| q6_K | 2 | ggml | 2 | 2 |", "| q6_K | 2 | repacked | 4 | 3 |",
                        "| q6_K | 2 | **ratio** | 2.00 | 0.50* |"]  # fmt: skip
    gops = list(lines(Question("q6_K", TINY, "scalar"), 1, (1, 2), found, "gops", ""))
    assert gops[0] == "| q6_K | 1 | ours, scalar | 32.8 | 16.4 |"
    assert "*" not in gops[-1].replace("**ratio**", "")


def test_each_kernel_is_measured() -> None:
    with Backend(BackendParams(threads=1), max_nodes=256) as backend:
        assert {"ours", "ggml"} <= set(measure(backend, Question("q4_0", TINY, "scalar"), (3,))[0])
