"""TokenLogprobs: how probable the model thought a token and its best alternatives were."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TokenLogprobs"]


class TokenLogprobs(NamedTuple):
    """Natural log-probabilities of one step, from the softmax of the model's logits as they came.

    No mask, no bias and no sampler enters, so a token can be sampled that is not in `top`.
    """

    token: int
    """The token asked about."""
    logprob: float
    """Its log-probability, <= 0 up to rounding; -inf when its logit is -inf."""
    top: list[tuple[int, float]]
    """(token, log-probability) of the best tokens, best first, ties by lowest id; tokens at -inf are left out."""
