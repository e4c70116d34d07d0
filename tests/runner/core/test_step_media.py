"""Embeddings of a step: which sequence holds them, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ollama_engine.input import BatchMedia, FloatArray, Input, MediaItem
from ollama_engine.runner.core.step_media import step_media
from ollama_engine.runner.execute.graph import InputSizes, media_rows
from ollama_engine.runner.media.encoder_cache import EncoderCache
from ollama_engine.runner.request.inputs import Inputs

N_EMBD = 4


def item(cache: EncoderCache, key: int) -> MediaItem:
    def embeddings() -> FloatArray:
        rows = cache.get(key)
        assert rows is not None, "nothing is encoded while a step computes"
        return rows

    return MediaItem(key, 1, embeddings, ready=lambda: key in cache)


def test_an_image_that_one_sequence_lets_go_is_there_for_another_of_the_same_step() -> None:
    """Between the two a third image is read; the engine closed itself then."""
    cache = EncoderCache(0)
    cache.put(1, np.ones((1, N_EMBD), np.float32))
    items = [item(cache, key) for key in (1, 2, 1)]
    inputs = [Inputs.of([Input(0, media)]) for media in items]
    sequences: list[Any] = [SimpleNamespace(inputs=given, encoded=[], reading=None) for given in inputs]
    sequences[0].reading = cache.get(1)
    cache.put(2, np.zeros((1, N_EMBD), np.float32))  # drops image 1, which the first sequence holds
    batch = SimpleNamespace(media=tuple(BatchMedia(row, 1, media) for row, media in enumerate(items)))
    step: Any = SimpleNamespace(batch=batch, sequence_at=sequences.__getitem__)
    executor: Any = SimpleNamespace(
        media_rows=lambda batch, failed: media_rows(batch.media, InputSizes(N_EMBD, embedded=True), failed)
    )
    monitor: Any = SimpleNamespace(image_hit=lambda: None)

    made = step_media(step, executor, monitor)
    assert not made.failures
    assert made.rows.embeddings is not None
    assert made.rows.embeddings[:, 0].tolist() == [1, 0, 1]
    assert all(sequence.reading is None for sequence in sequences)
