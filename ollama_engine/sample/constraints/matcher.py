"""GrammarConstraint: which tokens a grammar allows next, for one answer. MaskMaker: the masks of several at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.answer import Reading

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

__all__ = ["GrammarConstraint", "MaskMaker"]

Mask = npt.NDArray[np.uint32]


class GrammarConstraint:
    """Where one answer stands in its grammar. The matcher is ahead of the answer by the tokens that are forced.

    Text that the grammar leaves no choice about gets the tokens that the model's tokenizer makes of it, as far as what
    follows cannot change them; those are `forced`.
    """

    def __init__(self, matcher: LLMatcher, n_vocab: int, maker: MaskMaker, reading: Reading) -> None:
        self.maker = maker
        self.answered = reading.answered
        self._reading = reading
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._words = np.zeros((n_vocab + 31) // 32, np.uint32)
        self._made = False
        self._forced: deque[int] = deque()
        self._force()
        for token in self.answered:
            self.accept(token)

    # -- what may come -------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the grammar is fulfilled and nothing may follow but the end."""
        return not self._forced and self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        return not self._forced and self._matcher.is_accepting()

    @property
    def forced(self) -> Sequence[int]:
        """The tokens that come next whatever the model computes."""
        return self._forced

    def mask(self) -> Mask:
        """uint32 [ceil(n_vocab / 32)]. Raises GrammarError where the grammar has become too complex."""
        words = self._words
        if self._forced:
            token = self._forced[0]
            words[:] = 0
            words[token // 32] = 1 << (token % 32)
            self._made = False
            return words
        if not self._made:
            self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
            self._made = True
        self._check()
        return words

    # -- what has come -------------------------------------------------------------------------------------------------

    def accept(self, token: int) -> None:
        """Take note of the token that has come. Raises GrammarError for one that the grammar does not allow."""
        self._made = False
        if self._forced:
            if token != self._forced.popleft():
                raise GrammarError(f"token {token} came where the grammar forces another one")
            return
        self._matcher.consume_token(token)
        self._check()
        self._force()

    def _force(self) -> None:
        """Take the matcher over the text that has to follow."""
        forced = self._matcher.compute_ff_tokens()
        if forced:
            n = self._matcher.validate_tokens(forced)
            self._matcher.consume_tokens(forced[:n])
            self._check()
            self._forced.extend(forced[:n])

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot go on: {self._matcher.get_error()[:300]}")

    def reader(self, cut: str | None) -> Reading:
        """What reads the value of the answer, which has ended, or was cut off for this reason."""
        return replace(self._reading, cut=cut)

    # -- ahead of time -------------------------------------------------------------------------------------------------

    @property
    def wants_mask(self) -> bool:
        """Whether the next mask is not made yet."""
        return not (self._made or self._forced or self._matcher.is_error())


class MaskMaker:
    """Makes the masks of several answers in parallel, in threads of llguidance's, without Python's lock."""

    def __init__(self) -> None:
        self._executor: LLExecutor | None = None

    def make(self, constraints: Sequence[GrammarConstraint]) -> None:
        """Make those that are missing. What is wrong with one is told when its mask is asked for."""
        for constraint in constraints:
            if constraint.wants_mask:
                constraint.mask()
