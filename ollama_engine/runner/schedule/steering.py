"""Protocols that steer a generation: a constraint on its tokens, and a drafter for speculative decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ollama_engine.input import FloatArray
from ollama_engine.runner.request.results import ValueReader
from ollama_engine.runner.schedule.step_costs import StepPrices

__all__ = ["Constraint", "Draft", "DraftSource", "Drafter", "HiddenReader", "MaskSource", "TokenMask"]

TokenMask = npt.NDArray[np.uint32]
"""[ceil(n_vocab / 32)], a bitmap: token i may come where bit i % 32 of word i // 32 is set."""


class Constraint(Protocol):
    """Restricts the next tokens, as a grammar does. The engine thread calls it; an exception ends only its request."""

    answered: tuple[int, ...]
    """Tokens that had come when the request began: it goes on with another one's answer."""

    def mask(self) -> TokenMask | None:
        """The allowed next tokens; None: all. The next call may overwrite the array."""

    def accept(self, token: int) -> None:
        """Advance by a sampled token."""

    @property
    def ended(self) -> bool:
        """Whether nothing may follow any more: the answer ends without an end token."""

    @property
    def forced(self) -> Sequence[int]:
        """Tokens that come next whatever the model computes: their masks allow nothing else."""

    def foresee(self, guesses: Sequence[int], /) -> Sequence[tuple[int, bool]]:
        """(token, whether it is forced) of what comes if guesses are right; changes nothing.

        Guesses, as far as they are allowed one after the other, and tokens that are forced between and behind them.
        """

    @property
    def maker(self) -> MaskSource | None:
        """Makes the next mask while the device computes; None: `mask` makes it when it is asked."""

    def reader(self, cut: str | None) -> ValueReader | None:
        """A reader of the answer's value; the answer has ended, or was cut off for this reason."""


class MaskSource(Protocol):
    """Makes the next masks of several constraints, side by side. It raises nothing: `Constraint.mask` does."""

    def make(self, constraints: Sequence[Any], /) -> None:
        """Make them; all of these constraints have this maker."""


class Draft(NamedTuple):
    """Guesses for the next tokens."""

    tokens: Sequence[int] = ()
    chances: Sequence[float] | None = None
    """For each token the chance that it and all before it are right; None: all are verified, whatever that costs."""
    forced: int = 0
    """Bit i is set where a constraint forces token i, which is no guess then."""


class DraftSource(Protocol):
    """Makes drafts of several answers side by side, at a cost: a smaller model. It raises nothing."""

    def make(
        self, drafters: Mapping[int, Any], prices: StepPrices, left: Mapping[int, float], /
    ) -> tuple[dict[int, Draft], float]:
        """(drafts by the keys of their drafters, which all have this source; the seconds that guessing took).

        There is no draft where it does not pay. Seconds that contexts were read in do not count: they are read once
        for all guesses that follow. `left`: the seconds that each may lose, guessing and verifying together.
        """


class Drafter(Protocol):
    """Guesses the next tokens, so that one step verifies several (speculative decoding, arXiv:2211.17192).

    The answer does not depend on it: each proposal is compared with the token that the sampler takes. The engine thread
    calls it between steps, not behind each: while asking gives nothing, some steps are left out, so `tokens` may have
    grown by several. An exception ends only its request.
    """

    @property
    def source(self) -> DraftSource | None:
        """Asked for a draft behind `propose`, which stands where that gives none; None: `propose` gives all."""

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        """Up to `most` tokens that may follow `tokens`, the current context; an empty draft for no proposal.

        After truncation or a shift the context is not the whole text. Images appear as their placeholder tokens.
        """

    def end(self, answer: Sequence[int]) -> None:
        """The request has ended with these tokens of its answer, as far as a shift has left them. It raises nothing."""


@runtime_checkable
class HiddenReader(Protocol):
    """A drafter that guesses from the model's hidden states. The engine thread calls it."""

    @property
    def reads(self) -> int:
        """How many rows of the step that was computed it wants at most, the last ones of its answer."""

    def read_hidden(self, begin: int, rows: FloatArray, slot: int, /) -> None:
        """A step has computed hidden states, float32 [n, n_embd], of positions from `begin` on. It raises nothing.

        `slot`: the sequence of the model's cache that holds the answer.
        """
