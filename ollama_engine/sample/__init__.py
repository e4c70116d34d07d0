"""From logits to tokens.

    SamplingParams   params.py      what a caller may ask, checked and documented once
    Sampler          _sample.pyx    one sequence: sample, accept, logprobs, fork, reset
    sample_rows      _sample.pyx    one step for all rows with the GIL released
    sample_drafts    _sample.pyx    the tokens of each draft that are drawn, and the one behind them
    accept_rows      _sample.pyx    one accepted token for each row
    sampler_instructions  _sample.pyx  what the kernels were compiled for; all give the same tokens
    TokenLogprobs    logprobs.py    what `Sampler.logprobs` returns
    BreakerFinder    breakers.py    the tokens that DRY's sequence breakers are, found once for each vocabulary
    SequenceBreakers breakers.py    those of some texts

The work is done in csrc: sample.c (one step), chain.c (the samplers), pool.c (candidates), penalties.c and dry.c (the
tokens that penalties and DRY look back on), adaptive.c (adaptive-p), select.c (top-k), dist.c (top-p in whole rows,
draw). Below these are logit_kernels.c (softmax and other loops over whole rows, for each instruction set), philox.h
(random numbers) and exact_math.h (logarithms that are the same everywhere).

The names below are imported when they are first used: parameters are wanted where no sampler, and no numpy, is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.lazy import lazy_names

if TYPE_CHECKING:
    from ollama_engine.sample._sample import Sampler, accept_rows, sample_drafts, sample_rows, sampler_instructions
    from ollama_engine.sample.breakers import BreakerFinder, SequenceBreakers
    from ollama_engine.sample.logprobs import TokenLogprobs
    from ollama_engine.sample.params import LogitBias, SamplingParams

__all__ = [
    "BreakerFinder",
    "LogitBias",
    "Sampler",
    "SamplingParams",
    "SequenceBreakers",
    "TokenLogprobs",
    "accept_rows",
    "sample_drafts",
    "sample_rows",
    "sampler_instructions",
]

_HOMES = {
    "BreakerFinder": "breakers",
    "LogitBias": "params",
    "Sampler": "_sample",
    "SamplingParams": "params",
    "SequenceBreakers": "breakers",
    "TokenLogprobs": "logprobs",
    "accept_rows": "_sample",
    "sample_drafts": "_sample",
    "sample_rows": "_sample",
    "sampler_instructions": "_sample",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
