"""Whether results are equal: bit by bit, or as near as a device promises.

With `pytest --on-workers`, and on ARM64 where weights are F32, products add in another order where a batch has another
shape, so results differ in the last bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ollama_engine.ml.weights.kernel_choice import ROWS_OF_F32_ALIKE
from ollama_engine.runner.request.results import Completion, TokenLogprobs
from tests.support import suite

LOGITS = 1e-4
"""With weights and cache of float32, as `--on-workers` has them; 1e-5 is found."""


def exact() -> bool:
    """Whether a token has the same bits in any batch."""
    return ROWS_OF_F32_ALIKE and not suite.on_workers


def assert_same_rows(found: ArrayLike, expected: ArrayLike) -> None:
    """Logits or embeddings."""
    if exact():
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=0, atol=LOGITS)


def same_logprobs(found: Iterable[TokenLogprobs] | None, expected: Iterable[TokenLogprobs] | None) -> bool:
    """The same tokens with the same log-probabilities; None: none were asked for."""
    found, expected = tuple(found or ()), tuple(expected or ())
    if exact():
        return found == expected
    ours, theirs = [_flat(entry) for entry in found], [_flat(entry) for entry in expected]
    if [tokens for tokens, _ in ours] != [tokens for tokens, _ in theirs]:
        return False
    return all(np.allclose(a, b, rtol=0, atol=LOGITS) for (_, a), (_, b) in zip(ours, theirs, strict=True))


def assert_same_answer(found: Completion, expected: Completion, asked: object = None) -> None:
    """The same tokens, text, end and log-probabilities; `asked` is shown where they differ."""
    same = ("tokens", "text", "finish_reason")
    assert [getattr(found, name) for name in same] == [getattr(expected, name) for name in same], asked
    assert same_logprobs(found.logprobs, expected.logprobs), asked


def _flat(entry: TokenLogprobs) -> tuple[Any, list[float]]:
    """The tokens of an entry, and its numbers."""
    return (entry.token, [token for token, _ in entry.top]), [entry.logprob, *(number for _, number in entry.top)]
