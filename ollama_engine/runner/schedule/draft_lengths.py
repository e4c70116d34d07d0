"""How many tokens of each draft a step verifies: so many that most tokens come a second. Pure.

A row of a draft adds its chance of being right to the tokens that the step gives, and its cost to the seconds that it
takes. Rows are taken in the order of their chances, those of all sequences together, and the best of these sums wins.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

__all__ = ["LEAST_CHANCE", "draft_lengths"]

WORTH = 1.05
"""A draft must promise so many times the tokens a second of a step without it."""
LEAST_CHANCE = 0.02
"""Less likely guesses are not verified, whatever a row costs."""


def draft_lengths(
    n_rows: int, chances: Mapping[int, Sequence[float]], plain: float | None, seconds: Callable[[int], float | None],
    most: int,
) -> dict[int, int]:  # fmt: skip
    """The number of tokens to verify of each draft, by key; those of 0 are left out.

    `n_rows`: rows of the step without drafts, each of which gives a token. `chances`: for each token of a draft, the
    chance that it and all before it are right. `plain`: seconds of the step without drafts; `seconds`: of one of so
    many rows with drafts. `most`: rows that drafts may have together.
    """
    if plain is None or not n_rows:
        return {}
    line = [(-of_draft[0], key, 0) for key, of_draft in chances.items() if of_draft]
    heapq.heapify(line)
    taken: list[int] = []
    tokens, best, n_best = float(n_rows), WORTH * n_rows / plain, 0
    while line and len(taken) < most:
        chance, key, i = heapq.heappop(line)
        taken.append(key)
        tokens -= chance
        cost = seconds(n_rows + len(taken))
        assert cost is not None, "there are measurements"
        if tokens / cost > best:
            best, n_best = tokens / cost, len(taken)
        if i + 1 < len(chances[key]):
            heapq.heappush(line, (-chances[key][i + 1], key, i + 1))
    chosen = taken[:n_best]
    return {key: chosen.count(key) for key in dict.fromkeys(chosen)}
