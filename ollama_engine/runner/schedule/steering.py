"""Protocols that steer a generation: a constraint on its tokens, and a drafter for speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Constraint", "Drafter", "TokenMask"]

TokenMask = npt.NDArray[np.uint32]
"""[ceil(n_vocab / 32)], a bitmap: token i may come where bit i % 32 of word i // 32 is set."""


class Constraint(Protocol):
    """Restricts the next tokens, as a grammar does. The engine thread calls it; an exception ends only its request."""

    def mask(self) -> TokenMask | None:
        """The allowed next tokens; None: all. The next call may overwrite the array."""

    def accept(self, token: int) -> None:
        """Advance by a sampled token."""


class Drafter(Protocol):
    """Guesses the next tokens, so that one step verifies several (speculative decoding, arXiv:2211.17192).

    The answer does not depend on it: each proposal is compared with the token that the sampler takes. The engine thread
    calls it while no step in flight has this sequence; an exception ends only its request.
    """

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """Up to `most` tokens that may follow `tokens`, the current context; an empty sequence for no proposal.

        After truncation or a shift the context is not the whole text. Images appear as their placeholder tokens.
        """
