"""Control tokens of the tiny model, and parameters of answers that do not end by themselves."""

from __future__ import annotations

from typing import Any

from ollama_engine import SamplingParams

__all__ = ["BOS", "EOS", "EOT", "NO_END", "N_VOCAB", "greedy"]

N_VOCAB = 320
BOS, EOS, EOT = N_VOCAB - 3, N_VOCAB - 2, N_VOCAB - 1
NO_END = {EOS: float("-inf"), EOT: float("-inf")}
"""As `logit_bias`: the answer goes on until `max_tokens`."""


def greedy(n: int = 8, **fields: Any) -> SamplingParams:
    """Parameters of the most probable answer of `n` tokens."""
    return SamplingParams(temperature=0, max_tokens=n, logit_bias=NO_END, **fields)
