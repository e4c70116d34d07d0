"""DraftBudget: drafts may lose what they have won, and one in a hundred of the time that answers take. Pure.

Chances are estimates, and a text may belie them. So each answer has an account, and the engine one for all. Their unit
is a token: the part of a step without drafts that one of its answers pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ollama_engine.runner.schedule.step_costs import StepPrices

__all__ = ["SHARE", "DraftBudget"]

FIRST, FIRST_OF_ALL = 1.5, 32.0
"""What drafts may lose of an answer that begins, and of all answers when the engine begins."""
SHARE = 0.01
"""What each token of an answer adds to that."""
MOST, MOST_OF_ALL = 16.0, 256.0
"""Most that is saved up, so that a text that repeats nothing any more costs little."""


class DraftBudget:
    """The accounts of running answers, by key."""

    def __init__(self) -> None:
        self._accounts: dict[int, float] = {}
        self._of_all = FIRST_OF_ALL
        self._plain_steps = 0
        """Steps without drafts whose shares no account has yet."""

    def begin(self, keys: Iterable[int]) -> None:
        """From now on these answers run; accounts of others are closed."""
        self._pay_shares()
        self._accounts = {key: self._accounts.get(key, FIRST) for key in keys}

    def note_plain(self) -> None:
        """A step without drafts gave a token to each of these answers."""
        self._plain_steps += 1

    def note(self, counts: Mapping[int, tuple[int, int]], steps: float) -> None:
        """A step with drafts gave tokens to these answers: (guesses that were verified, those that were right).

        `steps`: the time that it took, in steps without drafts. What it took longer is paid by those with guesses.
        """
        drafted = sum(n for n, _ in counts.values())
        longer = len(counts) * (steps - 1) / drafted if drafted else 0.0
        for key, (n, right) in counts.items():
            self._add(key, SHARE + right - n * longer)

    def _add(self, key: int, change: float) -> None:
        self._accounts[key] = min(self._accounts[key] + change, MOST)
        self._of_all = min(self._of_all + change, MOST_OF_ALL)

    def _pay_shares(self) -> None:
        steps, self._plain_steps = self._plain_steps, 0
        for key in self._accounts if steps else ():
            self._add(key, SHARE * steps)

    def most(self, key: int, prices: StepPrices) -> int:
        """Most guesses of an answer that the next step may verify: if all are wrong, it costs no more than is left."""
        self._pay_shares()
        token = prices.plain / prices.n_rows
        left = min(self._accounts[key], self._of_all) * token
        first = prices.drafted(prices.n_rows + 1) - prices.plain
        return 0 if left < first else 1 + int((left - first) / max(prices.row, token / 100))
