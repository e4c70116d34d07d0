"""Decoding: what a stream gets does not depend on who decodes beside it, bit by bit, nor on where its cells lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine import demo
from ollama_engine.input import Batch
from ollama_engine.ml.ops.paged import paged_attention_chosen
from ollama_engine.ml.weights.kernel_choice import BY_TABLE
from ollama_engine.runner.load.loading import Loaded
from tests.kvcache.drawing import ints
from tests.models.variants import loaded
from tests.plugins.not_run_here import NOT_HERE
from tests.support.suite import scaled

STREAMS, STEPS = 32, 12
OURS = bool(BY_TABLE.rows("q8_0", 256)) and paged_attention_chosen("f16")
Logits = NDArray[np.float32]


def prompts(parts: Loaded) -> list[list[int]]:
    """Of 1 to 63 tokens: as many rows as go to the kernel that this is about."""
    text = "Once upon a time there was a little fox who lived in a big wood. One day she found a red ball. " * 4
    ids = parts.tokenizer.encode(text)
    return [ids[stream : stream + 1 + 2 * stream] for stream in range(STREAMS)]


def decode(
    parts: Loaded, tokens: dict[int, list[int]], meanwhile: Callable[[], None] = lambda: None
) -> dict[int, list[Logits]]:
    """Prompts one after the other, then all together, greedily; the logits of each step."""
    run = parts.executor.run
    found: dict[int, list[Logits]] = {stream: [] for stream in tokens}
    latest = {stream: run(Batch.of(ids, 0, stream))[0] for stream, ids in tokens.items()}
    meanwhile()
    lengths = {stream: len(ids) for stream, ids in tokens.items()}
    for step in range(STEPS):
        streams = list(tokens)
        batch = Batch(
            ints(int(latest[s].argmax()) for s in streams), ints(lengths[s] + step for s in streams), ints(streams),
            np.arange(len(streams), dtype=np.int32),
        )  # fmt: skip
        for stream, logits in zip(streams, run(batch), strict=True):
            latest[stream] = logits
            found[stream].append(logits)
    for stream in tokens:
        parts.cache.remove(stream)
    return found


def same(some: Sequence[Logits], others: Sequence[Logits]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(some, others, strict=True))


@pytest.mark.skipif(not OURS, reason=f"{NOT_HERE}kernels of ours for attention and Q8_0")
@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
def test_alone_and_among_31_others(dtype: str) -> None:
    with loaded(
        str(demo.path()), parallel=STREAMS, num_ctx=256, kv_cache_type=dtype, threads=scaled(2, quick=1)
    ) as parts:
        asked = prompts(parts)
        together = decode(parts, dict(enumerate(asked)))
        for stream in (0, 1, 17, 31):
            alone = decode(parts, {stream: asked[stream]})
            assert same(alone[stream], together[stream]), stream


@pytest.mark.skipif(not OURS, reason=f"{NOT_HERE}kernels of ours for attention and Q8_0")
def test_cells_in_any_order() -> None:
    """A stream goes on in cells below those of its prompt, for there are none above."""
    with loaded(str(demo.path()), parallel=4, num_ctx=64, threads=1) as parts:
        ids = prompts(parts)[20]
        expected = decode(parts, {0: ids})[0]
        for stream in range(1, 6):
            parts.executor.run(Batch.of(ids, 0, stream))
        parts.executor.run(Batch.of(ids + ids[: parts.cache.room - len(ids)], 0, 6))
        assert parts.cache.room == 0
        parts.cache.remove(4)
        got = decode(parts, {0: ids}, lambda: parts.cache.remove(2))[0]
        assert same(got, expected)
