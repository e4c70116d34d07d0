"""What steers a generation from outside its sampler: a constraint on its tokens, a drafter that guesses ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Constraint", "Drafter", "TokenMask"]

TokenMask = npt.NDArray[np.uint32]
"""[ceil(n_vocab / 32)], a bitmap: token i may come where bit i % 32 of word i // 32 is set."""


class Constraint(Protocol):
    """Says which tokens may come next: a grammar. The engine's thread calls it; an exception ends the request alone."""

    def mask(self) -> TokenMask | None:
        """The tokens that may come next; None: all. It may be overwritten by the next call."""

    def accept(self, token: int) -> None:
        """Take note of the token that has come."""


class Drafter(Protocol):
    """Guesses the next tokens, so that one step verifies several (speculative decoding, arXiv:2211.17192).

    The answer does not depend on it: each guess is compared with the token that the sampler takes. The engine's thread
    calls it while no step computes this sequence; an exception ends the request alone.
    """

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """Up to `most` tokens that may follow `tokens`, the context as it is now; none where it has no guess.

        After truncation or a shift the context is not the whole text; where it has images, it has their placeholders.
        """
