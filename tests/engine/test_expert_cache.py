"""Mixtures of experts that do not fit into memory: the same answers, and who decides how they are read."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ConfigError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.weights.weight_plan import block_of_tensor, has_experts
from ollama_engine.runner.load import expert_memory
from tests.models import families
from tests.models.variants import VARIANTS, Variant, loaded, prompt, rows
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="experts are given back on Linux only")

MIXTURES = [v for v in VARIANTS if "moe" in str(v) or "experts" in str(v)
            or v.architecture in {"gpt-oss", "llama4", "deepseek2", "glm4moe", "gemma4", "kimi-linear"}]  # fmt: skip


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
    if not least:
        pytest.skip("no experts in this case")
    for cache_bytes in (0, least):
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


def test_a_model_that_does_not_fit_gets_a_cache(
    mixture: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The plan says so, the log too; and with room all is as without the option."""
    with GGUFFile(mixture) as gguf:
        weights = sum(info.nbytes for info in gguf.tensors.values())
        experts = sum(info.nbytes for info in gguf.tensors.values() if has_experts(info))
    wanted, engine = answered(mixture)
    with engine:
        roomy = engine.memory.devices[-1]
        assert engine.info is not None
    assert (roomy.mapped, roomy.weights) == (weights, 0)
    monkeypatch.setattr(expert_memory, "PROGRAM", 0)
    monkeypatch.setattr(expert_memory, "RESERVED", 1 << 30)
    monkeypatch.setattr(expert_memory, "_beside_weights", lambda gguf, config: 0)
    monkeypatch.setattr(expert_memory, "available_bytes", lambda: weights - experts // 8)
    caplog.set_level("INFO")
    texts, engine = answered(mixture)
    with engine:
        taken = engine.memory.devices[-1]
    assert texts == wanted
    assert taken.mapped == 0
    assert weights - experts < taken.weights <= weights
    assert "MiB are in memory at once" in caplog.text
    planned = Engine.plan_memory(mixture, num_ctx=256, threads=2).devices[-1]
    assert planned.mapped == 0
    assert weights - experts < planned.weights <= weights
    _, engine = answered(mixture, expert_cache_bytes=0)
    with engine:
        assert engine.memory.devices[-1].mapped == weights


def test_a_cache_without_room_for_a_layer_is_refused(mixture: str) -> None:
    least = largest_layer(mixture)
    with pytest.raises(ConfigError, match=rf"at least {least}: the experts of a layer.*got {least - 1}"):
        Engine(mixture, expert_cache_bytes=least - 1)


def test_a_model_without_experts_says_that_the_option_has_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dense.gguf"
    write_tiny_llama(path, n_ctx=256, seed=3)
    with Engine(path, num_ctx=256, expert_cache_bytes=1 << 20):
        assert "expert_cache_bytes=1048576 has no effect" in caplog.text
