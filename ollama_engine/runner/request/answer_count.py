"""AnswerCount: how many answers each prompt of a call gets, and which of them are returned (`n` and `best_of`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ollama_engine.errors import ConfigError, Option
from ollama_engine.runner.request.options import whole
from ollama_engine.runner.request.prompts import check_params
from ollama_engine.runner.request.results import Completion
from ollama_engine.sample import SamplingParams

__all__ = ["AnswerCount"]

_SEEDS = 1 << 64
_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class AnswerCount:
    """`made` answers to each prompt are written, and the best `returned` of them are returned."""

    returned: int
    made: int

    @classmethod
    def of(cls, n: int | None, best_of: int | None, params: SamplingParams) -> AnswerCount:
        """Counts for `n` and `best_of`. Raises ConfigError for numbers out of range, and for candidates all alike."""
        returned = 1 if n is None else whole("n", n, 1, _MOST)
        if best_of is None:
            return cls(returned, returned)
        check_params(params)
        made = whole("best_of", best_of, 1, _MOST)
        if made < returned:
            raise ConfigError(Option("best_of"), f" is at least n, got {made} and n={returned}")
        if made > 1 and params.temperature == 0:
            raise ConfigError(
                Option("best_of"), f" is {made}, but all candidates are the same at ", Option("temperature", 0),
                advice=["choose a higher temperature", ("leave ", Option("best_of"), " out")],
            )  # fmt: skip
        return cls(returned, made)

    def variants(self, params: SamplingParams) -> Iterator[SamplingParams]:
        """Parameters of each answer to one prompt: those given, with a seed of its own where one was given.

        The seed of answer i is `seed + i` (modulo 2^64). Log-probabilities of the prompt are the first one's to give;
        those of the answers are needed to compare them.
        """
        if self.made > self.returned and params.logprobs is None:
            params = replace(params, logprobs=0)
        for i in range(self.made):
            seed = params.seed if params.seed is None else (params.seed + i) % _SEEDS
            yield params if i == 0 else replace(params, seed=seed, prompt_logprobs=None)

    def chosen(self, completions: list[Completion], params: SamplingParams) -> list[Completion]:
        """Selects the completions to return from `made` of each prompt in turn; `params` are the caller's."""
        if self.made == 1:
            return completions
        found: list[Completion] = []
        for begin in range(0, len(completions), self.made):
            found += self._best(completions[begin : begin + self.made], params)
        return found

    def _best(self, candidates: list[Completion], params: SamplingParams) -> list[Completion]:
        """The candidates of one prompt to return, the best first; equal ones stay in their order."""
        of_prompt = candidates[0].prompt_logprobs
        if self.made == self.returned:
            return [replace(candidate, prompt_logprobs=of_prompt) for candidate in candidates]
        ranked = sorted(candidates, key=_cumulative, reverse=True)
        discarded = sum(candidate.usage.completion_tokens for candidate in ranked[self.returned :])
        best = ranked[: self.returned]
        best[0] = replace(best[0], usage=replace(best[0].usage, discarded_tokens=discarded))
        logprobs = [candidate.logprobs if params.logprobs is not None else None for candidate in best]
        return [
            replace(candidate, prompt_logprobs=of_prompt, logprobs=wanted)
            for candidate, wanted in zip(best, logprobs, strict=True)
        ]


def _cumulative(completion: Completion) -> float:
    assert completion.cumulative_logprob is not None
    return completion.cumulative_logprob
