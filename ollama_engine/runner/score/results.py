"""Score: how probable a continuation is after a prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Score"]


@dataclass(frozen=True, slots=True)
class Score:
    """Natural log-probabilities of one continuation, from the softmax of the model's logits as they come.

    Attributes:
        logprob: log-probability of the whole continuation: the sum of `logprobs`.
        tokens: token ids that were scored.
        logprobs: log-probability of each of `tokens`, after the prompt and the tokens before it.
        is_greedy: whether each token is the most probable one in its place, as temperature 0 chooses it: the model
            would write this continuation.
    """

    logprob: float
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_greedy: bool

    @property
    def perplexity(self) -> float:
        """e to the mean negative log-probability of a token; infinite where one is impossible."""
        mean = -self.logprob / len(self.tokens)
        return math.exp(mean) if mean < 700 else math.inf
