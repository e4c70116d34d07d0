"""From logits to tokens.

    SamplingParams   params.py      what a caller may ask, checked and documented once
    Sampler          _sample.pyx    one sequence: sample, accept, logprobs, fork, reset
    sample_rows      _sample.pyx    one step for all rows with the GIL released
    accept_rows      _sample.pyx    one accepted token for each row
    TokenLogprobs    logprobs.py    what `Sampler.logprobs` returns

The work is done in csrc: sample.c (penalties, order of operations), select.c (top-k), dist.c (softmax, top-p, min-p,
draw), philox.h (random numbers).
"""

from __future__ import annotations

from ollama_engine.sample._sample import Sampler, accept_rows, sample_rows
from ollama_engine.sample.logprobs import TokenLogprobs
from ollama_engine.sample.params import LogitBias, SamplingParams

__all__ = ["LogitBias", "Sampler", "SamplingParams", "TokenLogprobs", "accept_rows", "sample_rows"]
