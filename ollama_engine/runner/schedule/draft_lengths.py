"""How many tokens of each draft a step verifies: so many that most tokens come a second. Pure.

A row of a draft adds its chance of being right to the tokens that the step gives, and its cost to the seconds that it
takes. Rows are taken in the order of their chances, those of all sequences together, and the best of these sums wins.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from ollama_engine.runner.schedule.step_costs import StepPrices

__all__ = ["LEAST_CHANCE", "ROWS", "draft_lengths", "least_speed"]

WORTH = 1.05
"""A draft must promise so many times the tokens a second of a step without it."""
SEVERAL = 1.3
"""Drafts of one among several answers must promise so many times more: all wait for the step, and chances and costs
are estimates."""
ROWS = frozenset([*range(1, 7), 8, 10, 12, 16, 24, 32, 48, 64])
"""Numbers of rows that a step with drafts has, up to 64: few, so that their graphs are kept."""
MOST_ROWS = max(ROWS)
LEAST_CHANCE = 0.02
"""Less likely guesses are not verified, whatever a row costs."""


def least_speed(prices: StepPrices) -> float:
    """The tokens a second that a step with drafts must promise."""
    return WORTH * (1.0 if prices.n_rows == 1 else SEVERAL) * prices.n_rows / prices.plain


def draft_lengths(prices: StepPrices, chances: Mapping[int, Sequence[float]], most: int) -> dict[int, int]:
    """The number of tokens to verify of each draft, by key; those of 0 are left out.

    `chances`: for each token of a draft, the chance that it and all before it are right. `most`: rows that drafts may
    have together.
    """
    n_rows = prices.n_rows
    line = [(-of_draft[0], key, 0) for key, of_draft in chances.items() if of_draft]
    heapq.heapify(line)
    taken: list[int] = []
    tokens, best, n_best = float(n_rows), least_speed(prices), 0
    while line and len(taken) < most:
        chance, key, i = heapq.heappop(line)
        taken.append(key)
        tokens -= chance
        rows = n_rows + len(taken)
        if rows in ROWS or rows > MOST_ROWS:
            speed = tokens / prices.drafted(rows)
            if speed > best:
                best, n_best = speed, len(taken)
        if i + 1 < len(chances[key]):
            heapq.heappush(line, (-chances[key][i + 1], key, i + 1))
    chosen = taken[:n_best]
    return {key: chosen.count(key) for key in dict.fromkeys(chosen)}
