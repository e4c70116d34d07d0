"""Whether results are equal: bit by bit on the CPU, and as near as other devices promise with `pytest --on-workers`.

Kernels of other devices add in another order where a batch has another shape, so their results differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ollama_engine.runner.request.results import TokenLogprobs
from tests.support import suite

LOGITS = 1e-4
"""With weights and cache of float32, as `--on-workers` has them; 1e-5 is found."""


def assert_same_rows(found: ArrayLike, expected: ArrayLike) -> None:
    """Logits or embeddings."""
    if suite.on_workers:
        np.testing.assert_allclose(found, expected, rtol=0, atol=LOGITS)
    else:
        np.testing.assert_array_equal(found, expected)


def same_logprobs(found: Iterable[TokenLogprobs], expected: Iterable[TokenLogprobs]) -> bool:
    """The same tokens with the same log-probabilities."""
    found, expected = tuple(found), tuple(expected)
    if not suite.on_workers:
        return found == expected
    ours, theirs = [_flat(entry) for entry in found], [_flat(entry) for entry in expected]
    if [tokens for tokens, _ in ours] != [tokens for tokens, _ in theirs]:
        return False
    return all(np.allclose(a, b, rtol=0, atol=LOGITS) for (_, a), (_, b) in zip(ours, theirs, strict=True))


def _flat(entry: TokenLogprobs) -> tuple[Any, list[float]]:
    """The tokens of an entry, and its numbers."""
    return (entry.token, [token for token, _ in entry.top]), [entry.logprob, *(number for _, number in entry.top)]
