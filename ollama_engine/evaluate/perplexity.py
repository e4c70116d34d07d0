"""Perplexity: how surprised a model is by a text. It uses the executor directly, without the engine core.

The rule is llama-perplexity's, so that figures can be compared. The tokens are split into chunks of one context each; a
rest at the end is dropped. A chunk starts with an empty cache, and with BOS instead of its first token where the
vocabulary wants BOS. The tokens behind the chunk's middle are scored, each given all tokens before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import ComputeError, ConfigError, Option
from ollama_engine.input import Batch, FloatArray
from ollama_engine.kvcache import Cache
from ollama_engine.runner.execute.executor import Executor

__all__ = ["MIN_CONTEXT", "Perplexity", "chunk_logprobs", "chunks", "scored_from", "token_logprobs"]

MIN_CONTEXT = 8
"""Fewest tokens of a chunk: a shorter one has almost no tokens to score."""
SEQUENCE = 0
BLOCK = 1 << 16
"""Logits that are processed at once: few enough to stay in a core's cache."""

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Perplexity:
    """The sum of the scores of tokens. Immutable: `plus` returns a new sum."""

    n_scored: int = 0
    total: float = 0.0
    """Sum of the negative log-probabilities."""
    total_of_squares: float = 0.0

    def plus(self, logprobs: Float64Array) -> Perplexity:
        """A new sum that also counts these log-probabilities (natural logarithm, float64 [n])."""
        return Perplexity(
            self.n_scored + len(logprobs),
            self.total - float(logprobs.sum()),
            self.total_of_squares + float((logprobs * logprobs).sum()),
        )

    @property
    def value(self) -> float:
        """exp(mean of the negative log-probabilities); infinite where one of them is, or where it overflows."""
        mean = self.total / self.n_scored
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def error(self) -> float:
        """The standard error of `value`, on the assumption that tokens are independent."""
        if not math.isfinite(self.value):
            return math.inf
        mean = self.total / self.n_scored
        variance = max(0.0, self.total_of_squares / self.n_scored - mean * mean)
        return self.value * math.sqrt(variance / max(1, self.n_scored - 1))


def scored_from(num_ctx: int) -> int:
    """Index of the first scored token of a chunk; the tokens before it are context only."""
    return num_ctx // 2 + 1


def chunks(ids: Sequence[int], num_ctx: int, bos: int | None) -> list[list[int]]:
    """The chunks of a text. Raises ConfigError for a text shorter than one."""
    if num_ctx < MIN_CONTEXT:
        raise ConfigError(f"a chunk has at least {MIN_CONTEXT} tokens, got a context of {num_ctx}")
    if len(ids) < num_ctx:
        raise ConfigError(
            f"the text has {len(ids)} tokens, and a chunk takes {num_ctx}",
            advice=["give a longer text", ("choose a smaller ", Option("num_ctx"))],
        )
    starts = range(0, len(ids) - num_ctx + 1, num_ctx)
    pieces = [list(ids[start : start + num_ctx]) for start in starts]
    if bos is not None:
        for chunk in pieces:
            chunk[0] = bos
    return pieces


def chunk_logprobs(executor: Executor, cache: Cache, chunk: Sequence[int]) -> Float64Array:
    """Log-probabilities of the tokens that are scored, float64 [len(chunk) - scored_from(len(chunk))].

    The cache is empty before and afterwards. Raises ComputeError when the model computes no numbers.
    """
    scored = np.asarray(chunk[scored_from(len(chunk)) :], np.int32)
    logprobs = np.empty(len(scored), np.float64)
    done = 0
    try:
        for batch in _batches(chunk, executor.batch_size):
            executor.prepare(batch)
            executor.launch(batch.tokens)
            with executor.results() as logits:
                end = done + len(logits)
                logprobs[done:end] = token_logprobs(logits, scored[done:end])
                done = end
    finally:
        cache.remove(SEQUENCE)
    if np.isnan(logprobs).any():
        raise ComputeError("the model computes NaN for this text; its weights are damaged")
    return logprobs


def _batches(chunk: Sequence[int], batch_size: int) -> Iterator[Batch]:
    """Batches of a chunk without its last token. A row of logits scores the next token, and the last has none."""
    known = len(chunk) - 1
    for begin in range(0, known, batch_size):
        end = min(begin + batch_size, known)
        wanted = range(max(begin, scored_from(len(chunk)) - 1), end)
        yield Batch.of(chunk[begin:end], begin, SEQUENCE, [position - begin for position in wanted])


def token_logprobs(logits: FloatArray, tokens: npt.NDArray[np.int32]) -> Float64Array:
    """Natural log-probability of one token for each row of logits [n, n_vocab], float64 [n].

    Sums are float64. NaN or +infinity in a row makes its result NaN.
    """
    logprobs = np.empty(len(tokens), np.float64)
    step = max(1, BLOCK // logits.shape[1])
    with np.errstate(invalid="ignore"):  # +infinity in a row: the result is NaN, as documented
        for start in range(0, len(tokens), step):
            rows = logits[start : start + step]
            top = rows.max(axis=1, keepdims=True)
            chosen = np.take_along_axis(rows, tokens[start : start + step, None], axis=1) - top
            sums = np.exp(rows - top).sum(axis=1, dtype=np.float64)
            logprobs[start : start + step] = chosen[:, 0] - np.log(sums)
    return logprobs
