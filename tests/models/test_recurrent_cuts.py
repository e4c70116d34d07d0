"""Every architecture with recurrent states: the same bits however a prompt is cut, in company, forked and restored."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.input import Batch
from ollama_engine.ml.weights.kernel_choice import ROWS_OF_F32_ALIKE
from ollama_engine.models import model_class
from ollama_engine.models.transformer import Transformer
from ollama_engine.runner.load.loading import Loaded
from tests.models.variants import VARIANTS, Variant, loaded, prompt
from tests.support.suite import slow_except

RECURRENT = [
    variant for variant in VARIANTS
    if getattr(model_class(variant.architecture), "layer_state", None) is not Transformer.layer_state
    and issubclass(model_class(variant.architecture), Transformer)
]  # fmt: skip
N = 12
same = np.array_equal if ROWS_OF_F32_ALIKE else partial(np.allclose, atol=1e-4)
"""These models have products of F32 weights, whose bits depend on the number of rows on ARM64."""


def test_all_of_them_are_here() -> None:
    assert {variant.architecture for variant in RECURRENT} >= {
        "falcon-h1", "granitehybrid", "kimi-linear", "lfm2", "lfm2moe", "mamba2", "nemotron_h", "nemotron_h_moe",
        "qwen35", "qwen35moe", "qwen3next",
    }  # fmt: skip


def run(parts: Loaded, ids: list[int], begin: int, end: int, sequence: int = 0) -> NDArray[np.float32]:
    """The logits of rows [begin, end) of a sequence."""
    return parts.executor.run(Batch.of(ids[begin:end], begin, sequence, list(range(end - begin)))).copy()


@pytest.mark.parametrize("variant", slow_except(RECURRENT, "lfm2-lfm2", "mamba2-mamba2", "qwen35-qwen35"), ids=str)
def test_bits_do_not_depend_on_cuts_and_company(variant: Variant, tmp_path: Path) -> None:
    ids = [prompt(N, seed=seed) for seed in range(3)]
    with loaded(variant.file(tmp_path), parallel=4) as parts:
        whole = [run(parts, tokens, 0, N, sequence) for sequence, tokens in enumerate(ids)]
        cache = parts.cache
        assert cache.recurrent is not None
        assert cache.saveable is not None
        for cut in range(1, N):
            for sequence in range(5):
                cache.remove(sequence)
            first = [run(parts, ids[s], 0, at, s) for s, at in enumerate((cut, N - cut, 1))]
            cache.share(0, 3, cut)
            saved = cache.saveable.save(0)
            cache.saveable.restore(4, saved)
            begins = [cut, N - cut, 1]
            rows = [(s, p) for s, begin in enumerate(begins) for p in range(begin, N)]
            rows.sort(key=lambda row: (row[1], row[0]))  # sequences take turns
            sequences, positions = (np.array(column, np.int32) for column in zip(*rows, strict=True))
            tokens = np.array([ids[s][p] for s, p in rows], np.int32)
            together = parts.executor.run(Batch(tokens, positions, sequences, np.arange(len(rows), dtype=np.int32)))
            for s in range(3):
                rest = together[sequences == s]
                assert same(np.concatenate((first[s], rest)), whole[s]), (cut, s)
            for sequence in (3, 4):
                assert same(run(parts, ids[0], cut, N, sequence), whole[0][cut:]), (cut, sequence)
            cache.check()
