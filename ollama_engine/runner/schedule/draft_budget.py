"""DraftBudget: drafts may lose what they have won, and one in two hundred of the time that answers take. Pure.

Chances are estimates, and a text may belie them. So each answer has an account, and the engine one for all. Their unit
is a token: the part of a step without drafts that one of its answers pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ollama_engine.runner.schedule.step_costs import StepPrices

__all__ = ["SHARE", "DraftBudget"]

FIRST_OF_ALL = 48.0
"""What drafts may lose of all answers when the engine begins."""
PART = 32.0
"""An answer that begins may lose what drafts may lose of all answers, divided by this."""
FIRST = 1.5
"""Most that drafts may lose of an answer that begins."""
SHARE = 0.005
"""What each token of an answer adds to its account."""
UNVERIFIED = 0.25
"""What the first guess of a draft that no step verified adds where it was right, up to what an answer begins with, or
takes where it was wrong, down to nothing. So one early loss does not end the drafts of a text that repeats itself."""
MOST, MOST_OF_ALL = 16.0, 256.0
"""Most that is saved up, so that a text that repeats nothing any more costs little."""
KEPT = 256
"""Accounts of answers that do not run: some were preempted, and go on."""


class DraftBudget:
    """The accounts of answers, by key."""

    def __init__(self) -> None:
        self._accounts: dict[int, float] = {}
        """In the order in which they ran last."""
        self._running: tuple[int, ...] = ()
        self._of_all = FIRST_OF_ALL
        self._plain_steps = 0
        """Steps without drafts whose shares no account has yet."""

    @property
    def first(self) -> float:
        """What drafts may lose of an answer that begins now."""
        return max(0.0, min(self._of_all / PART, FIRST))

    def begin(self, keys: Iterable[int]) -> None:
        """From now on these answers run."""
        self._pay_shares()
        self._running = tuple(keys)
        for key in self._running:
            self._accounts[key] = self._accounts.pop(key, self.first)
        for key in list(self._accounts)[: max(0, len(self._accounts) - len(self._running) - KEPT)]:
            del self._accounts[key]

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

    def note_unverified(self, key: int, *, right: bool) -> None:
        """The first guess for an answer was right or not, and no step verified it."""
        account = self._accounts[key]
        if right:
            self._accounts[key] = max(account, min(account + UNVERIFIED, self.first))
        else:
            self._accounts[key] = min(account, max(account - UNVERIFIED, 0.0))

    def note_guessing(self, guesses: Mapping[int, int], steps: float) -> None:
        """So many guesses for these answers took so long to make, in steps without drafts, while all answers waited."""
        whole = sum(max(1, n) for n in guesses.values())
        for key, n in guesses.items():
            self._add(key, -steps * len(self._running) * max(1, n) / whole)

    def _add(self, key: int, change: float) -> None:
        self._accounts[key] = min(self._accounts[key] + change, MOST)
        self._of_all = min(self._of_all + change, MOST_OF_ALL)

    def _pay_shares(self) -> None:
        steps, self._plain_steps = self._plain_steps, 0
        for key in self._running if steps else ():
            self._add(key, SHARE * steps)

    def left(self, key: int, prices: StepPrices) -> float:
        """The seconds that drafts of an answer may lose now."""
        self._pay_shares()
        return max(0.0, min(self._accounts[key], self._of_all)) * prices.plain / prices.n_rows

    def most(self, key: int, prices: StepPrices) -> int:
        """Most guesses of an answer that the next step may verify: if all are wrong, it costs no more than is left."""
        return prices.affordable(self.left(key, prices))
