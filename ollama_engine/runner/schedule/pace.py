"""How much of waiting prompts a step computes beside running answers, and what it leaves these. Pure."""

from __future__ import annotations

from collections.abc import Collection

from ollama_engine.runner.schedule.scheduler import BatchLimits, Candidate

__all__ = ["PROMPT_ROWS", "beside_answers", "prompt_tokens_beside"]

PROMPT_ROWS = 64
"""Rows of a step that decodes and reads one prompt, both together: nearly as efficient per row as 512, and the border
of some kernels for few rows."""

MOST_PROMPTS = 4
"""So many waiting prompts make a step longer. 256 rows are as efficient as more, and answers pause for all of them."""

HEADROOM = 16
"""Cells that prompts leave to each decoding sequence, so that it can go on for a while."""

LEAST = 32
"""Fewest prompt tokens, however many answers run."""


def prompt_tokens_beside(answers: int, prompts: int) -> int:
    """Most prompt tokens in a step with `answers` running answers and `prompts` waiting prompts.

    A short step keeps running answers quick; a long one computes more rows a second, and so the prompts, and in the end
    all answers, are done earlier. The more callers wait for their first token, the more that counts.
    """
    return max(LEAST, PROMPT_ROWS * max(1, min(prompts, MOST_PROMPTS)) - answers)


def beside_answers(limits: BatchLimits, candidates: Collection[Candidate]) -> BatchLimits:
    """These limits with those of prompts, for a step of these candidates."""
    answers = sum(candidate.decoding for candidate in candidates)
    prompts = len(candidates) - answers
    return limits._replace(prompt_tokens=prompt_tokens_beside(answers, prompts), headroom=HEADROOM * answers)
