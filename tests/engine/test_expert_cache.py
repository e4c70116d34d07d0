"""Engine(expert_cache_bytes=N), for mixtures of experts that do not fit into memory: the same answers in it."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ConfigError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.weights.weight_plan import block_of_tensor, has_experts
from tests.models import families
from tests.models.variants import VARIANTS, Variant, loaded, prompt, rows
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="experts are given back on Linux only")

UNNAMED = {"deepseek2", "deepseek2-ocr", "glm4moe", "gpt-oss", "kimi-linear", "llama4", "minimax-m2", "mistral4",
           "qwen3next"}  # fmt: skip
"""Mixtures whose cases do not say so."""
MIXTURES = [v for v in VARIANTS if "moe" in str(v) or "experts" in str(v) or v.architecture in UNNAMED]


def largest_layer(path: str) -> int:
    layers = Counter[int]()
    with GGUFFile(path) as gguf:
        for info in gguf.tensors.values():
            if has_experts(info):
                layers[block_of_tensor(info.name) or 0] += info.nbytes
    return max(layers.values(), default=0)


@pytest.mark.parametrize("variant", slow_except(MIXTURES, MIXTURES[0], *MIXTURES[-1:]), ids=str)
def test_every_mixture_computes_the_same_bits(variant: Variant, tmp_path: Path) -> None:
    """With memory for one layer's experts, as with all weights in the mapped file."""
    path, ids, logits = variant.file(tmp_path), prompt(40), []
    least = largest_layer(path)
    assert least, "a case with experts"
    for cache_bytes in (None, least):
        with loaded(path, expert_cache_bytes=cache_bytes) as parts:
            assert (parts.weights.experts is not None) is bool(cache_bytes)
            logits.append([rows(parts.executor, ids, size, sequence=i) for i, size in enumerate((40, 1))])
    for mapped, read in zip(*logits, strict=True):
        np.testing.assert_array_equal(mapped, read)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mixture") / "mixture.gguf"
    write_tiny_llama(path, n_ctx=256, n_embd=64, n_ff=96, n_layer=3, n_expert=8, n_expert_used=2, dtype="q8_0", seed=3)
    return str(path)


PARAMS = SamplingParams(temperature=0, max_tokens=40, logit_bias=families.BANNED)


def answered(path: str, **options: Any) -> tuple[list[str], Engine]:
    engine = Engine(path, num_ctx=256, threads=2, **options)
    return [engine.generate(text, params=PARAMS).text for text in ("One day", "a b c d e f g", "the end")], engine


def test_an_engine_sleeps_and_answers_the_same(mixture: str) -> None:
    wanted, plain = answered(mixture)
    plain.close()
    texts, engine = answered(mixture, expert_cache_bytes=largest_layer(mixture))
    with engine:
        assert texts == wanted
        engine.sleep()
        assert engine.generate("One day", params=PARAMS).text == wanted[0]


def test_the_next_router_guesses(tmp_path: Path) -> None:
    """Where layers add nothing and norms are alike, all routers read the same, so that each guess is right."""
    path, n = str(tmp_path / "alike.gguf"), {"n_layer": 4, "n_embd": 64, "n_ff": 96, "n_expert": 8}
    alike = {
        f"blk.{i}.{name}.weight": array
        for i in range(4)
        for name, array in (("attn_output", np.zeros((64, 64), np.float32)), ("ffn_norm", np.ones(64, np.float32)),
                            ("ffn_down_exps", np.zeros((8, 64, 96), np.float32)))
    }  # fmt: skip
    write_tiny_llama(path, n_ctx=256, tensors=alike, seed=3, **n)
    with loaded(path, expert_cache_bytes=1 << 40) as parts:
        rows(parts.executor, prompt(40), 1)
        assert parts.weights.experts is not None
        counts = parts.weights.experts.counts()
    assert counts["guesses"] == counts["guessed_right"] == 3 * 40 * 2


def test_metrics_count_what_is_read(mixture: str) -> None:
    """A prompt with room for all: each expert that is used is read once. Without the option nothing is counted."""
    for cache_bytes, read in ((1 << 40, True), (None, False)):
        with Engine(mixture, num_ctx=256, threads=2, expert_cache_bytes=cache_bytes) as engine:
            engine.generate("One day", params=PARAMS)
            seen = engine.metrics
        assert (seen.expert_uses > seen.expert_misses + seen.experts_read_ahead > 0) is read
        assert (seen.expert_bytes_read > 0) is read
        assert seen.experts_used_ahead <= seen.experts_read_ahead


def test_threads_end_with_the_engine(mixture: str) -> None:
    tasks = len(os.listdir("/proc/self/task"))
    engine = Engine(mixture, num_ctx=256, threads=2, expert_cache_bytes=largest_layer(mixture))
    next(iter(engine.stream("One day", params=replace(PARAMS, max_tokens=200))))  # goes on while it is closed
    engine.close()
    eventually(lambda: len(os.listdir("/proc/self/task")) <= tasks)


def test_memory_holds_what_was_allowed(mixture: str) -> None:
    """As planned; without the option all weights are in the mapped file, however little memory there is."""
    with GGUFFile(mixture) as gguf:
        weights = sum(info.nbytes for info in gguf.tensors.values())
        experts = sum(info.nbytes for info in gguf.tensors.values() if has_experts(info))
    least = largest_layer(mixture)
    for options, mapped, held in (
        ({}, weights, 0),
        ({"expert_cache_bytes": least}, 0, weights - experts + least),
        ({"expert_cache_bytes": 1 << 40}, 0, weights),
        ({"expert_cache_bytes": least, "mmap": False}, 0, weights - experts + least),
    ):
        planned = Engine.plan_memory(mixture, num_ctx=256, threads=2, **options).devices[-1]
        with Engine(mixture, num_ctx=256, threads=2, **options) as engine:
            taken = engine.memory.devices[-1]
        assert (taken.mapped, taken.weights) == (planned.mapped, planned.weights) == (mapped, held)
        assert taken.repacked == 0 or not options


def test_a_cache_without_room_for_a_layer_is_refused(mixture: str) -> None:
    least = largest_layer(mixture)
    with pytest.raises(ConfigError, match=rf"at least {least}: the experts of a layer.*got {least - 1}"):
        Engine(mixture, expert_cache_bytes=least - 1)


def test_a_model_without_experts_says_that_the_option_has_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dense.gguf"
    write_tiny_llama(path, n_ctx=256, seed=3)
    caplog.set_level(logging.INFO, "ollama_engine")
    with Engine(path, num_ctx=256, expert_cache_bytes=1 << 20):
        said = [
            record.levelname
            for record in caplog.records
            if "expert_cache_bytes=1048576 has no effect" in record.getMessage()
        ]
    assert said == ["INFO"], "once; a server has it for models of all kinds"
