"""Media items for tests: embeddings that say which item and which row they are."""

from __future__ import annotations

import numpy as np

from ollama_engine.input import FloatArray, Input, Int32Array, MediaItem


def item(
    content: int,
    n_inputs: int = 3,
    n_embd: int = 4,
    *,
    positions: Int32Array | None = None,
    n_positions: int | None = None,
    cross_attention: bool = False,
    rows: int | None = None,
) -> MediaItem:
    """An item of `n_inputs` inputs whose embeddings are the same for the same `content`."""

    def embeddings() -> FloatArray:
        numbers = np.random.default_rng(content)
        return numbers.normal(0, 1, (n_inputs if rows is None else rows, n_embd)).astype(np.float32)

    return MediaItem(content, n_inputs, embeddings, positions, n_positions, cross_attention)


def image(content: int, n_inputs: int = 3, token: int = 9, *, grouped: bool = True, n_embd: int = 4) -> list[Input]:
    """The inputs of an image: `token` first, zeros behind it, all in one batch where `grouped`."""
    first = Input(token, item(content, n_inputs, n_embd), n_inputs - 1 if grouped else 0)
    return [first, *[Input(0)] * (n_inputs - 1)]
