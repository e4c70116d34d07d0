"""PathReader: log-probabilities of the tokens that continuations need from one path's rows of logits."""

from __future__ import annotations

from typing import NamedTuple

from ollama_engine.input import FloatArray
from ollama_engine.runner.score.paths import Path
from ollama_engine.sample import Sampler

__all__ = ["PathReader", "ScoredToken"]


class ScoredToken(NamedTuple):
    """One token after one node."""

    logprob: float
    is_best: bool


class PathReader:
    """See `RowReader`. `n_prompt`: inputs of the prompt; `sampler`: over the vocabulary, whatever its parameters."""

    sound = True

    def __init__(self, path: Path, n_prompt: int, sampler: Sampler) -> None:
        self._path = path
        self._sampler = sampler
        self._begin = n_prompt - 1 + path.first
        self.entries: list[dict[int, ScoredToken]] = []
        """For each row: token -> its score."""

    @property
    def next(self) -> int | None:
        """See `RowReader`."""
        return self._begin + len(self.entries) if len(self.entries) < len(self._path.scored) else None

    def read(self, begin: int, logits: FloatArray) -> None:
        """See `RowReader`."""
        assert begin == self.next, "rows come in their order"
        scored = self._path.scored[len(self.entries) :]
        self.entries += [
            self._row(row[: self._sampler.n_vocab], tokens) for row, tokens in zip(logits, scored, strict=False)
        ]

    def _row(self, row: FloatArray, tokens: set[int]) -> dict[int, ScoredToken]:
        first = min(tokens)
        scored = self._sampler.logprobs(row, first, 1)
        best, best_logprob = scored.top[0]
        # Softmax has the same denominator for all of them.
        denominator = float(row[best]) - best_logprob
        return {token: ScoredToken(float(row[token]) - denominator, token == best) for token in tokens}

    def result(self) -> None:
        """Nothing: who made it looks at `entries`."""
