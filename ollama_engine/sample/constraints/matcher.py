"""GrammarConstraint: which tokens a grammar allows next, for one answer. MaskMaker: the masks of several at once."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.answer import Reading

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

__all__ = ["GrammarConstraint", "MaskMaker", "short_message"]

Mask = npt.NDArray[np.uint32]

FULFILLED = ("NoExtension", "NoExtensionBias", "EndOfSentence")
"""Why a matcher stops at the end of its grammar; other reasons are errors."""
TOO_MANY_STATES = re.compile(r"too many states: (\d+)")
"""How a matcher says that the lexer came to the most states that it may have."""
LONGEST = 500
"""Characters of the matcher's message, which may quote the grammar."""


def short_message(message: str) -> str:
    """The matcher's message, without what it appends for those who debug it."""
    return message.partition("\n<state>")[0].strip()[:LONGEST]


class GrammarConstraint:
    """Where one answer stands in its grammar. The matcher is ahead of the answer by the tokens that are forced.

    Text that the grammar leaves no choice about gets the tokens that the model's tokenizer makes of it, as far as what
    follows cannot change them; those are `forced`. So an answer is the same whether they are computed one by one, each
    with a mask that allows it alone, or several in one step.

    Matchers of one grammar share the states of its lexer, and all of them fail when one has used up the last. So the
    first failure has `compile_anew` make a matcher that shares with no other, and the answer goes on in that.
    """

    def __init__(
        self, matcher: LLMatcher, n_vocab: int, maker: MaskMaker, reading: Reading,
        compile_anew: Callable[[], LLMatcher] | None = None,
    ) -> None:  # fmt: skip
        self.maker = maker
        self.answered = reading.answered
        """Tokens of the answer that had come when this request began."""
        self._reading = reading
        self._matcher = matcher
        self._compile_anew = compile_anew
        self._consumed: list[int] = []
        """What the matcher has been given."""
        self._n_words = (n_vocab + 31) // 32
        self._words = np.zeros(maker.n_words, np.uint32)
        self._made = False
        self._begun = False
        self._forced: deque[int] = deque()
        self._force()
        for token in self.answered:
            self.accept(token)

    # -- what may come -------------------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the grammar is fulfilled and nothing may follow but the end."""
        return not self._forced and self._matcher.is_stopped() and self._matcher.stop_reason() in FULFILLED

    @property
    def forced(self) -> Sequence[int]:
        """The tokens that come next whatever the model computes."""
        return self._forced

    def mask(self) -> Mask:
        """uint32 [ceil(n_vocab / 32)]: the forced token, or what the grammar allows; end tokens where it may end.

        Raises GrammarError where the grammar has become too complex.
        """
        if self._forced:
            return self._only(self._forced[0])
        self._check()
        while not self._made:
            self.make_mask()
            self._check()
        return self._words[: self._n_words]

    def _only(self, token: int) -> Mask:
        words = np.zeros(self._n_words, np.uint32)
        words[token // 32] = 1 << (token % 32)
        return words

    # -- what has come -------------------------------------------------------------------------------------------------

    def accept(self, token: int) -> None:
        """Take note of the token that has come. Raises GrammarError for one that the grammar does not allow."""
        if self._forced:
            forced = self._forced.popleft()
            if token != forced:
                raise GrammarError(f"token {token} came where the grammar forces token {forced}")
            return
        self._made = False
        self._consumed.append(token)
        self._matcher.consume_token(token)
        self._check()
        self._begun = True
        self._force()

    def _force(self) -> None:
        """Take the matcher over the text that has to follow."""
        if forced := _take_forced(self._matcher):
            self._consumed += forced
            self._check()
            self._begun = True
            self._forced.extend(forced)

    def foresee(self, guesses: Sequence[int]) -> list[tuple[int, bool]]:
        """See `Constraint`. The answer stays where it is."""
        matcher, forced = self._matcher.deep_copy(), list(self._forced)
        foreseen: list[tuple[int, bool]] = []
        for guess in guesses:
            if forced:
                if guess != forced[0]:
                    break  # what followed it elsewhere does not follow here
                foreseen.append((forced.pop(0), True))
            elif matcher.validate_tokens([guess]):
                matcher.consume_token(guess)
                foreseen.append((guess, False))
                forced = _take_forced(matcher)
            else:
                break
        return foreseen + [(token, True) for token in forced]

    def _check(self) -> None:
        """Raises what the matcher has failed with, unless another one can go on."""
        if not self._matcher.is_error():
            return
        said = short_message(self._matcher.get_error())
        if said in FULFILLED:
            where = "once this answer has begun" if self._begun else "from the first token on"
            raise GrammarError(f"no answer can fulfil this grammar, {where}: a rule never ends, or allows nothing")
        if states := TOO_MANY_STATES.search(said):
            if self._renewed():
                return
            raise GrammarError(
                f"the format is too large: after {len(self._consumed)} tokens its grammar needs more than {states[1]} "
                "states, and may have no more; repeat less in it (minLength, maxLength, x{1,1000}), or use simpler "
                "patterns"
            )
        raise GrammarError(f"the grammar cannot go on: {said}")

    def _renewed(self) -> bool:
        """Whether a matcher that shares its states with no other can go on; it does so once."""
        if self._compile_anew is None:
            return False
        matcher, self._compile_anew = self._compile_anew(), None
        matcher.consume_tokens(self._consumed)
        if matcher.is_error():
            return False
        self._matcher, self._made = matcher, False
        return True

    def reader(self, cut: str | None) -> Reading:
        """A reader of the answer's value; the answer has ended, or was cut off for this reason."""
        return replace(self._reading, cut=cut)

    # -- ahead of time -------------------------------------------------------------------------------------------------

    @property
    def wants_mask(self) -> bool:
        """Whether the next mask is not made yet."""
        return not (self._made or self._forced or self._matcher.is_error())

    def make_mask(self) -> None:
        """Make the next mask now, without Python's lock."""
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._made = True

    def mask_into(self, words: Mask) -> LLMatcher:
        """Have the next mask in `words`, into which the caller has the matcher write it."""
        self._words, self._made = words, True
        return self._matcher


def _take_forced(matcher: LLMatcher) -> list[int]:
    """Take a matcher over the text that has to follow; returns its tokens."""
    forced = matcher.compute_ff_tokens()
    if forced:
        forced = forced[: matcher.validate_tokens(forced)]
        matcher.consume_tokens(forced)
    return forced


class MaskMaker:
    """Makes the masks of several answers side by side, in threads of llguidance's and without Python's lock."""

    def __init__(self, n_words: int, executor: LLExecutor) -> None:
        self.n_words = n_words
        """32-bit words of a mask, as the matchers of this vocabulary write it."""
        self._executor = executor

    def make(self, constraints: Sequence[GrammarConstraint]) -> None:
        """Make those that are missing. An error of one is raised when its mask is asked for."""
        missing = [constraint for constraint in constraints if constraint.wants_mask]
        if len(missing) > 1:
            # Anew each time: a mask is kept until its row is sampled, which may be some steps later.
            words = np.zeros((len(missing), self.n_words), np.uint32)
            matchers = [(each.mask_into(row), i) for i, (each, row) in enumerate(zip(missing, words, strict=True))]
            self._executor.unsafe_compute_mask_ptr(matchers, words.ctypes.data, words.strides[0], len(missing))
        elif missing:
            missing[0].make_mask()
