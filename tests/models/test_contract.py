"""Rules for every architecture: how a prompt is cut, batched, cached and computed does not change the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.input import Batch
from ollama_engine.kvcache import make_null_cache
from ollama_engine.models import Embeds, Model
from ollama_engine.runner.execute.executor import Executor
from tests.models.cases import difference
from tests.models.variants import (
    CPU,
    N_CTX,
    QUICK_VARIANTS,
    REPACKABLE,
    VARIANTS,
    WRITERS,
    Variant,
    executor,
    loaded,
    minimal,
    prompt,
    rows,
)
from tests.plugins.not_run_here import NOT_HERE
from tests.support.suite import slow_except

SAME = 1e-4
"""Largest difference between two ways to compute the same, in standard deviations of the logits; 3e-6 is found."""


def attends(model: Model) -> bool:
    """Whether any layer has keys and values."""
    return any(layer.kv_heads for layer in model.cache_layers)


each_variant = pytest.mark.parametrize("variant", slow_except(VARIANTS, *QUICK_VARIANTS), ids=str)


@each_variant
@pytest.mark.parametrize("flash", ["on", "off"])
def test_one_shot_equals_chunked_equals_token_by_token(variant: Variant, flash: Any, tmp_path: Path) -> None:
    ids = prompt(90)
    with loaded(variant.file(tmp_path), flash_attention=flash) as parts:
        expected = rows(parts.executor, ids, len(ids))
        for size in (64, 33, 7, 1):
            parts.cache.remove(0)
            assert difference(rows(parts.executor, ids, size), expected) <= SAME, f"batches of {size}"
            parts.cache.check()


@each_variant
def test_greedy_tokens_do_not_depend_on_the_batch_size(variant: Variant, tmp_path: Path) -> None:
    path = variant.file(tmp_path)
    params = SamplingParams(temperature=0, max_tokens=32)
    answers = []
    for batch_size in (512, 33, 7, 1):
        with Engine(path, num_ctx=N_CTX, batch_size=batch_size, kv_cache_type="f32", **CPU) as engine:
            answers.append(engine.generate(prompt(60), params).tokens)
    assert answers.count(answers[0]) == len(answers)


@each_variant
@pytest.mark.parametrize("flash", ["on", "off"])
def test_sequences_in_one_batch_do_not_see_each_other(variant: Variant, flash: Any, tmp_path: Path) -> None:
    """Two sequences of different lengths, token about token in the same batches, then two steps of decoding."""
    first, second = prompt(40, seed=1), prompt(30, seed=2)
    with loaded(variant.file(tmp_path), flash_attention=flash) as parts:
        alone = [rows(parts.executor, ids, 64, sequence=s, last=3) for s, ids in ((0, first), (5, second))]
        parts.cache.remove(0)
        parts.cache.remove(5)
        together: dict[int, list[Any]] = {0: [], 5: []}
        for batch, sequences in _interleaved({0: first, 5: second}):
            logits = parts.executor.run(batch)
            for sequence, row in zip(sequences, logits, strict=True):
                together[sequence].append(row.copy())
        for expected, found in zip(alone, together.values(), strict=True):
            assert difference(np.stack(found[-3:]), expected) <= SAME


def _interleaved(prompts: dict[int, list[int]]) -> list[tuple[Batch, list[int]]]:
    """One batch of all but the last two tokens of each, sorted by position, then two batches of one token each.

    Every batch comes with the sequences of its output rows.
    """
    entries = [(p, s, t) for s, ids in prompts.items() for p, t in enumerate(ids[:-2])]
    batches = [sorted(entries), *([(len(p) - k, s, p[-k]) for s, p in prompts.items()] for k in (2, 1))]
    made = []
    for batch in batches:
        positions, sequences, tokens = (np.array(column, dtype=np.int32) for column in zip(*batch, strict=True))
        last = np.array([i for i, (p, s, _) in enumerate(batch) if p >= len(prompts[s]) - 3], dtype=np.int32)
        made.append((Batch(tokens, positions, sequences, last), [int(sequences[i]) for i in last]))
    return made


@each_variant
def test_a_reused_graph_gives_the_same_numbers_as_a_new_one(variant: Variant, tmp_path: Path) -> None:
    ids = prompt(40)
    with loaded(variant.file(tmp_path)) as parts:
        reused = rows(parts.executor, ids, 1)
        assert parts.executor.counts.reused > 30
        parts.cache.remove(0)
        rebuilt = []
        for position, token in enumerate(ids):
            parts.executor.close()
            rebuilt.append(parts.executor.run(Batch.of([token], position))[0].copy())
        np.testing.assert_array_equal(reused, np.stack(rebuilt[-32:]))


@each_variant
def test_a_run_leaves_nothing_behind(variant: Variant, tmp_path: Path) -> None:
    """The same prompt gives the same bits again after another one was computed and removed."""
    with loaded(variant.file(tmp_path)) as parts:
        before = rows(parts.executor, prompt(50), 64)
        for ids in (prompt(120, seed=9), prompt(50)):
            parts.cache.remove(0)
            again = rows(parts.executor, ids, 64)
        np.testing.assert_array_equal(before, again)


@each_variant
def test_flash_attention_on_equals_off(variant: Variant, tmp_path: Path) -> None:
    path, logits = variant.file(tmp_path), []
    for flash in (True, False):
        with loaded(path, flash_attention=flash) as parts:
            assert parts.cache.flash_attention is (flash and attends(parts.model))
            logits.append(rows(parts.executor, prompt(90), 64))
    assert difference(*logits) <= SAME


@each_variant
@pytest.mark.parametrize("flash", ["on", "off"])
def test_without_a_cache_the_logits_are_the_same(variant: Variant, flash: Any, tmp_path: Path) -> None:
    """Embeddings are computed so: two texts in one batch, all rows at once, by `hidden`."""
    first, second = prompt(70, seed=1), prompt(50, seed=2)
    with loaded(variant.file(tmp_path), flash_attention=flash) as parts:
        expected = [rows(parts.executor, ids, 64, sequence=s, last=16) for s, ids in ((0, first), (5, second))]
        cache = make_null_cache(parts.model.cache_layers, flash_attention=flash == "on", causal=True)
        alone = Executor(parts.backend, parts.model, cache, 120, 120)
        left, other = Batch.of(first, 0, 0), Batch.of(second, 0, 5)
        both = Batch(
            *(np.concatenate(pair) for pair in ((left.tokens, other.tokens), (left.positions, other.positions),
                                                (left.sequences, other.sequences))),
            np.array([*range(54, 70), *range(104, 120)], dtype=np.int32),
        )  # fmt: skip
        assert difference(alone.run(both), np.concatenate(expected)) <= SAME
        alone.close()
        assert isinstance(parts.model, Embeds)
        hidden = Executor(parts.backend, parts.model, cache, 120, 120, forward=parts.model.hidden)
        assert hidden.run(both).shape == (32, parts.model.n_embd)
        hidden.close()


@pytest.mark.parametrize("variant", REPACKABLE, ids=str)
def test_repacked_weights_compute_the_same(variant: Variant, tmp_path: Path) -> None:
    """Few rows read the repacked copy: the same products of 8-bit activations, added up in another order."""
    path = variant.file(tmp_path)
    ids, logits = prompt(40), {}
    for repack in (True, False):
        with executor(path, repack=repack) as (runner, weights):
            repacked = [name for name, weight in weights.items() if weight.repacked is not None]
            if repack and not repacked:
                pytest.skip(f"{NOT_HERE}a repacked layout of {variant.fields['dtype']}")
            assert bool(repacked) is repack
            logits[repack] = rows(runner, ids, 1)
    assert difference(logits[True], logits[False]) <= 1e-3


TOLERANCES = {"f32": 0.0, "f16": 2e-2, "bf16": 4e-2, "q8_0": 0.2, "q5_0": 1.0, "q4_0": 1.5}
"""Of a thousand logits one may differ by more for each kv_cache_type, in standard deviations; most are below a quarter
of it."""
OTHER_EXPERTS = 3
"""How much larger it may be where a rounded key makes a router choose another expert."""


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("architecture", slow_except(WRITERS, "llama", "gpt-oss"))
def test_cache_types_are_near_f32(architecture: str, dtype: Any, tmp_path: Path) -> None:
    variant = minimal(architecture)
    path, logits = variant.file(tmp_path, **variant.wide), {}
    for kind in ("f32", dtype):
        with loaded(path, kv_cache_type=kind) as parts:
            logits[kind] = rows(parts.executor, prompt(90), 64)
            routed = any("ffn_gate_inp" in name for name in parts.weights)
            rounded = dtype != "f32" and attends(parts.model)
    off = np.abs(logits[dtype] - logits["f32"]) / logits["f32"].std()
    # Of 20,480 logits the largest difference is anywhere.
    assert np.quantile(off, 0.999) <= TOLERANCES[dtype] * (OTHER_EXPERTS if routed else 1)
    assert np.median(off) <= TOLERANCES[dtype] / 4
    assert off.any() == rounded
