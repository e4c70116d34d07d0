"""Every family computes the same on other devices: all layers, some, the output alone, and on two devices.

The devices are workers on loopback: processes with memory of their own, which ggml treats as it treats GPUs. They
compute on this CPU with ggml's kernels, so logits may differ from ours in their last bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.ml.device.device import devices
from tests.models.cases import difference
from tests.models.variants import CPU, N_CTX, QUICK_VARIANTS, VARIANTS, Variant, prompt
from tests.models.vision import harness
from tests.models.vision.harness import Case, cases, greedy
from tests.support.suite import slow_except
from tests.support.workers import RunningWorker, two_workers

SAME = 1e-4
"""Largest difference in standard deviations of the logits; 5e-6 is found."""

GREEDY = SamplingParams(temperature=0, max_tokens=24)

PLACEMENTS: dict[str, dict[str, Any]] = {
    "all": {"gpu_layers": None},
    "some": {"gpu_layers": 2},
    "output": {"gpu_layers": 1},
    "two": {"gpu_layers": None, "tensor_split": (3, 1)},
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningWorker, RunningWorker]]:
    with two_workers(tmp_path_factory.mktemp("workers")) as both:
        yield both


def answer(path: str, **options: Any) -> tuple[Any, Any]:
    """Tokens of a greedy answer, and all logits of a prompt."""
    with Engine(path, num_ctx=N_CTX, **{"kv_cache_type": "f32", **CPU, **options}) as engine:
        return engine.generate(prompt(60), GREEDY).tokens, engine.logits(prompt(40))


@pytest.mark.parametrize("variant", slow_except(VARIANTS, *QUICK_VARIANTS), ids=str)
def test_every_family(variant: Variant, workers: tuple[RunningWorker, RunningWorker], tmp_path: Path) -> None:
    path = variant.file(tmp_path)
    tokens, logits = answer(path)
    for name, placement in PLACEMENTS.items():
        named = [worker.address for worker in workers[: 2 if name == "two" else 1]]
        found, scores = answer(path, devices=named, **placement)
        assert found == tokens, name
        assert difference(scores, logits) <= SAME, name


@pytest.mark.parametrize("case", slow_except(cases(), "llava"), ids=str)
def test_images(case: Case, workers: tuple[RunningWorker, RunningWorker], tmp_path: Path) -> None:
    """Greedy tokens after pictures are those of transformers, wherever tower, projector and layers lie."""
    path, expected = harness.converted(case, tmp_path), harness.load(case).answers
    for name, placement in PLACEMENTS.items():
        named = [worker.address for worker in workers[: 2 if name == "two" else 1]]
        with harness.engine(path, **{"devices": named, **placement}) as engine:
            for key, given in case.prompts.items():
                found = engine.generate(case.segments(given), greedy(case))
                assert list(found.tokens) == expected[key].tokens, (name, key)


NEAR = {("f32", "off"): 1e-4, ("f16", "on"): 5e-3, ("f16", "off"): 5e-3, ("bf16", "on"): 5e-2, ("q8_0", "on"): 5e-2,
        ("q4_0", "on"): 0.5}  # fmt: skip
"""Types of the cache, flash attention -> the largest difference in standard deviations: keys round otherwise, too."""


@pytest.mark.parametrize(("dtype", "flash"), NEAR)
def test_cache_types(dtype: Any, flash: Any, workers: tuple[RunningWorker, RunningWorker], tmp_path: Path) -> None:
    path = _wide(tmp_path)
    options = {"kv_cache_type": dtype, "flash_attention": flash}
    here = answer(path, **options)[1]
    there = answer(path, **options, devices=[workers[0].address], gpu_layers=None)[1]
    assert difference(there, here) <= NEAR[dtype, flash]


def _wide(folder: Path) -> str:
    variant = next(v for v in VARIANTS if str(v) == "llama-everything")
    return variant.file(folder, **variant.wide)


def test_a_tied_output_lies_where_it_is_computed(workers: tuple[RunningWorker, RunningWorker], tmp_path: Path) -> None:
    """The largest product of a small model; it is on the CPU where only the embeddings of tokens are."""
    tied = next(v for v in VARIANTS if str(v) == "llama-minimal").file(tmp_path)
    with Engine(tied, num_ctx=64, **{**CPU, "gpu_layers": 1}, devices=[workers[0].address]) as engine:
        remote, host = engine.memory.devices
        assert remote.device == workers[0].address
        assert host.device == devices()[-1].name
        width, rows = engine._loaded.weights["token_embd.weight"].shape[:2]
        assert remote.weights >= width * rows * 4
        before = engine._loaded.backend.workers[0].counts()
        tokens = engine.generate(prompt(5), GREEDY).tokens
        after = engine._loaded.backend.workers[0].counts()
    assert len(tokens) > 1
    assert after["graphs"] - before["graphs"] >= len(tokens), "the worker computes the output of every step"


RECURRENT = (
    "falcon-h1", "granitehybrid", "kimi-linear", "lfm2", "lfm2moe", "mamba2", "nemotron_h", "nemotron_h_moe",
    "olmo-hybrid", "qwen35", "qwen35moe", "qwen3next",
)  # fmt: skip
"""Their states lie on this CPU, and their layers compute a part here: they send more."""


@pytest.mark.parametrize(
    "variant", slow_except([v for v in VARIANTS if v.architecture not in RECURRENT], "llama-everything"), ids=str
)
def test_steps_send_little(variant: Variant, workers: tuple[RunningWorker, RunningWorker], tmp_path: Path) -> None:
    """A decoding step sends its inputs and waits once, for its logits: the graph is in one piece, and sent once."""
    path = variant.file(tmp_path)
    with Engine(path, num_ctx=N_CTX, **{**CPU, "gpu_layers": None}, devices=[workers[0].address]) as engine:
        worker = engine._loaded.backend.workers[0]
        engine.generate(prompt(20), GREEDY)
        before = worker.counts()
        steps = len(engine.generate(prompt(20), GREEDY).tokens)
        assert steps > 8
        counts = {name: (number - before[name]) / steps for name, number in worker.counts().items()}
        logits = 4 * engine.info.n_vocab
    assert counts["round_trips"] <= 1.1
    assert counts["graphs"] <= 1.1
    assert counts["bytes_received"] <= 1.1 * logits
    assert counts["bytes_sent"] <= 8192
