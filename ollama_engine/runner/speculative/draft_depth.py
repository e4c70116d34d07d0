"""How many tokens a source of drafts guesses ahead: so many that most tokens come a second. Pure."""

from __future__ import annotations

from ollama_engine.runner.schedule.draft_lengths import least_speed
from ollama_engine.runner.schedule.step_costs import StepPrices

__all__ = ["MOST_AHEAD", "best_depth"]

MOST_AHEAD = 16
"""Most tokens that are guessed ahead."""


def best_depth(prices: StepPrices, chance: float, guess: float) -> int:
    """How far to guess where each guess is right with this chance, and takes `guess` seconds for all answers together.

    0 where that gives not more tokens a second than steps without drafts.
    """
    n = prices.n_rows
    best, chosen, tokens = least_speed(prices), 0, float(n)
    for depth in range(1, MOST_AHEAD + 1):
        tokens += n * chance**depth
        speed = tokens / (prices.drafted(n * (1 + depth)) + depth * guess)
        if speed > best:
            best, chosen = speed, depth
    return chosen
