"""What cases of draft models share: a tiny one for a case of `families`, and what its reference guesses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models import families
from tests.models.published import Published

__all__ = ["GUESSES", "DraftCase", "DraftGolden"]

GUESSES = 5


@dataclass(frozen=True)
class DraftCase:
    """A draft model for the family's case `model`. `settings` are those of its block's config beside the model's."""

    name: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    outer: Mapping[str, Any] = field(default_factory=dict)
    """Its config beside the block's."""
    dtype: str = field(default="F32", kw_only=True)
    seed: int = field(default=1, kw_only=True)

    def __str__(self) -> str:
        return self.name

    @property
    def family(self) -> families.Family:
        """The model that it drafts for."""
        return families.case(self.model)


@dataclass(frozen=True)
class DraftGolden(Published):
    """What the reference gives behind a prompt of the family, each guess behind the one before."""

    tokens: list[int]
    """The token that the model draws, and the guesses."""
    logits: NDArray[np.float32]
    """[GUESSES, n_vocab or n_draft]."""
    states: NDArray[np.float32]
    """What it gives for the next guess, [GUESSES, the model's n_embd]; perhaps not for the last."""

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """As they are written."""
        return {"tokens": np.array(self.tokens, np.int16), "logits": self.logits, "states": self.states}
