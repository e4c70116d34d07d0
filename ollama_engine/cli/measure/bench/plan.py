"""The plan of `bench`: number of tokens, repetitions, streams and depths."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine.cli.errors import UsageError
from ollama_engine.config import RANGES

__all__ = ["BenchPlan"]

CONTEXT_STEP = 256
"""Contexts are multiples of this, as in llama.cpp, so that both engines take the same memory."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The measurements of a benchmark. Raises UsageError for a plan that cannot be measured."""

    n_prompt: int
    n_gen: int
    repetitions: int
    warmup: bool
    parallel: tuple[int, ...] = ()
    """Numbers of streams that are served at once."""
    depths: tuple[int, ...] = ()
    """Tokens that are in the context already."""

    def __post_init__(self) -> None:
        if self.n_prompt < 0 or self.n_gen < 0 or self.n_prompt + self.n_gen == 0:
            raise UsageError(
                f"-p and -n are 0 or more, and one of them 1 or more; got {self.n_prompt} and {self.n_gen}"
            )
        if self.repetitions < 1:
            raise UsageError(f"-r is 1 or more, got {self.repetitions}")
        if any(streams < 1 for streams in self.parallel):
            raise UsageError(f"--parallel are numbers of streams, 1 or more; got {min(self.parallel)}")
        if any(depth < 0 for depth in self.depths):
            raise UsageError(f"--depth are numbers of tokens, 0 or more; got {min(self.depths)}")
        # Computing the prompt gives the first token of an answer, so decoding speed needs a second one.
        if self.parallel and (self.n_prompt < 1 or self.n_gen < 2):
            raise UsageError(
                f"streams have a prompt and an answer: -p is 1 or more and -n 2 or more; got {self.n_prompt} and "
                f"{self.n_gen}"
            )
        most = RANGES["num_ctx"][1]
        if self.num_ctx > most:
            raise UsageError(f"-p, -n and the largest --depth are {most} together at most, got {self.num_ctx}")

    @property
    def num_ctx(self) -> int:
        """Tokens of the longest context, prompt and answer, rounded up."""
        return _rounded_up(max(self.depths, default=0) + self.n_prompt + self.n_gen)

    @property
    def num_ctx_of_stream(self) -> int:
        """Tokens of prompt and answer, rounded up."""
        return _rounded_up(self.n_prompt + self.n_gen)


def _rounded_up(n_tokens: int) -> int:
    return -(-n_tokens // CONTEXT_STEP) * CONTEXT_STEP
