"""CacheManager: cells and histories change together."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import numpy as np
import pytest

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import SavedRows
from ollama_engine.runner.prefix.cache_manager import CacheManager
from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.inputs import Inputs, Lookahead
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.schedule.batching import assemble
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix, Saved
from ollama_engine.runner.schedule.row_readers import AllRows
from ollama_engine.runner.schedule.scheduler import Scheduled
from ollama_engine.runner.schedule.scoring import Scoring
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest
from ollama_engine.runner.schedule.text_emitter import TextEmitter
from ollama_engine.sample import Sampler, SamplingParams
from tests.runner.fakes import Events, FakeCache


class Rig:
    """A space with four sequences over a cache of 100 cells."""

    def __init__(self, cache: FakeCache | None = None, sequences: int = 4) -> None:
        self.cache = FakeCache(100) if cache is None else cache
        self.cache_manager = CacheManager(cast(Any, self.cache), sequences=sequences)
        self.now = 0.0

    def request(self, tokens: list[int], **options: Any) -> Generation:
        params = SamplingParams(temperature=0)
        return Generation(
            channel=RequestChannel(Events()), inputs=Inputs.text(tokens), num_ctx=8,
            options=RequestOptions(**options), params=params,
            sampler=Sampler(params, 8), emitter=cast(TextEmitter, None), eog_ids=frozenset(), n_prompt=len(tokens),
        )  # fmt: skip

    def begin(self, sequence: ScheduledRequest) -> bool:
        self.now += 1
        return self.cache_manager.begin(sequence, self.now)

    def compute(self, sequence: ScheduledRequest, n: int | None = None) -> None:
        """As a step of this sequence alone."""
        n = sequence.n_inputs - sequence.submitted if n is None else n
        step = assemble(0, (Scheduled(sequence.key, n, 1),), {sequence.key: sequence})
        assert sequence.slot is not None
        self.cache.lengths[sequence.slot] += n
        sequence.submitted += n
        self.cache_manager.note(step, step.tokens())

    def leave(self, sequence: ScheduledRequest, *, keep: bool = True) -> None:
        self.now += 1
        self.cache_manager.leave(sequence, self.now, keep=keep)
        self.cache_manager.prefix_cache.check()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_who_begins_alike_shares_what_is_there(rig: Rig) -> None:
    first, other = rig.request([1, 2, 3, 4]), rig.request([1, 2, 3, 9])
    assert rig.begin(first)
    assert (first.slot, first.submitted) == (0, 0)
    rig.compute(first)
    assert rig.begin(other)
    assert (other.slot, other.submitted) == (1, 3)
    assert rig.cache.calls == [("share", 0, 1, 3)]


def test_an_ended_history_is_taken_over_and_cut(rig: Rig) -> None:
    first, other = rig.request([1, 2, 3, 4]), rig.request([1, 2, 9])
    rig.begin(first)
    rig.compute(first)
    rig.leave(first)
    assert rig.begin(other)
    assert other.submitted == 2
    assert rig.cache.lengths[other.slot or 0] == 2


@pytest.mark.parametrize("options", [{"cache": False}, {}])
def test_who_keeps_to_itself_neither_takes_nor_leaves_anything(rig: Rig, options: Any) -> None:
    first = rig.request([1, 2, 3, 4], **options)
    rig.begin(first)
    rig.compute(first)
    rig.leave(first, keep=bool(options))
    assert rig.cache.room == 100
    assert rig.cache_manager.prefix_cache.state(0) == "free"
    other = rig.request([1, 2, 3, 4], cache=False)
    rig.begin(other)
    assert other.submitted == 0


def test_scoring_takes_nothing_over_for_every_row_is_wanted(rig: Rig) -> None:
    first = rig.request([1, 2, 3, 4])
    rig.begin(first)
    rig.compute(first)
    scoring = Scoring(channel=RequestChannel(Events()), inputs=first.inputs, num_ctx=8, row_reader=AllRows(4, 1))
    rig.begin(scoring)
    assert scoring.submitted == 0


def test_a_window_that_has_dropped_too_much_is_not_resumed(rig: Rig) -> None:
    rig.cache.can_resume = lambda sequence, position: position >= 4  # type: ignore[method-assign]
    first = rig.request([1, 2, 3, 4, 5])
    rig.begin(first)
    rig.compute(first)
    for tokens, length in (([1, 2, 3, 4, 9], 4), ([1, 2, 3, 9], 0)):
        other = rig.request(tokens)
        rig.begin(other)
        assert other.submitted == length


def test_when_all_sequences_are_in_use_nobody_begins(rig: Rig) -> None:
    running = [rig.request([i, 2, 3]) for i in range(4)]
    assert [rig.begin(sequence) for sequence in running] == [True] * 4
    late = rig.request([7])
    assert not rig.begin(late)
    assert late.slot is None
    rig.compute(running[2])
    rig.leave(running[2])
    assert rig.begin(late)
    assert late.slot == 2
    assert rig.cache.lengths[2] == 0


def test_who_has_left_a_step_leaves_its_cells(rig: Rig) -> None:
    sequence = rig.request([1, 2, 3])
    rig.begin(sequence)
    rig.compute(sequence)
    sequence.sampled, sequence.awaited = [5], 1
    step = assemble(0, (Scheduled(sequence.key, 1, 1),), {sequence.key: sequence})
    rig.cache.lengths[0] += 1
    sequence.epoch += 1
    rig.cache_manager.note(step, step.tokens())
    assert rig.cache.lengths[0] == rig.cache_manager.prefix_cache.length(0) == 3


def test_eviction_takes_the_one_that_was_not_used_for_longest(rig: Rig) -> None:
    ended = [rig.request([i, 2, 3]) for i in range(3)]
    for sequence in ended:
        rig.begin(sequence)
        rig.compute(sequence)
    for sequence in (ended[1], ended[0]):
        rig.leave(sequence)
    assert rig.cache_manager.evict()
    assert [rig.cache_manager.prefix_cache.state(i) for i in range(3)] == ["finished", "free", "live"]
    assert rig.cache_manager.evict()
    assert not rig.cache_manager.evict()
    assert rig.cache.room == 97


def full(rig: Rig) -> Generation:
    """A sequence that has filled its context, and goes on from its first two tokens."""
    sequence = rig.request([1, 2, 3, 4], on_overflow="shift")
    sequence.keep = 2
    rig.begin(sequence)
    rig.compute(sequence)
    for token in (5, 6, 7, 8):
        sequence.sampled.append(token)
        rig.compute(sequence, 1)
    sequence.sampled.append(9)
    return sequence


def test_a_shift_moves_cells_history_and_sequence_alike(rig: Rig) -> None:
    sequence = full(rig)
    assert sequence.full
    rig.cache_manager.shift(sequence)
    assert ("shift", 0, 2, 3) in rig.cache.calls
    assert rig.cache_manager.prefix_cache.tokens(0).tolist() == [1, 2, 6, 7, 8]
    assert (sequence.submitted, sequence.shifted, sequence.known, sequence.token(5)) == (5, 3, 6, 9)
    candidate = sequence.candidate(Lookahead())
    assert candidate is not None
    assert candidate.decoding
    # What a shift left has seen what is gone: nobody else may have it.
    rig.leave(sequence)
    other = rig.request([1, 2, 6, 7, 8])
    rig.begin(other)
    assert other.submitted == 2


@pytest.mark.parametrize("how", ["cannot shift", "no room to copy", "cannot resume"])
def test_what_cannot_be_moved_is_computed_again(rig: Rig, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ContextOverflowError("shares cells")

    sequence = full(rig)
    if how == "cannot shift":
        monkeypatch.setattr(rig.cache_manager, "_shiftable", None)
    elif how == "no room to copy":
        monkeypatch.setattr(rig.cache, "require_shift", refuse)
    else:
        monkeypatch.setattr(rig.cache, "can_resume", lambda sequence, position: position <= 2)
    epoch = sequence.epoch
    rig.cache_manager.shift(sequence)
    assert sequence.inputs.tokens.tolist() == [1, 2, 6, 7, 8, 9]
    assert (sequence.submitted, sequence.slot, sequence.sampled, sequence.epoch) == (2, 0, [], epoch + 1)
    assert rig.cache.lengths[0] == rig.cache_manager.prefix_cache.length(0) == 2


@pytest.mark.parametrize(("helps", "left"), [
    ([], [1, 2, 3]),  # already fits
    ([2], [1, 3]), ([1, 3], [2]), ([1, 2, 3], []),
    ([9], [1, 2, 3]),  # nobody does: computed again, and all stay
])  # fmt: skip
def test_a_shift_gives_up_those_only_that_make_it_fit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, helps: list[int], left: list[int]
) -> None:
    def require(sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        if not set(helps) <= set(without):
            raise ContextOverflowError("shares cells")

    sequence = rig.request([1, 2, 3, 4, 5, 6, 7, 8], on_overflow="shift")
    rig.begin(sequence)
    for first in (11, 12, 13):
        kept = rig.request([first, 2, 3])
        rig.begin(kept)
        rig.compute(kept)
        rig.leave(kept)
    assert rig.cache_manager.prefix_cache.evict_candidates() == [1, 2, 3]
    rig.compute(sequence)
    sequence.sampled.append(9)
    monkeypatch.setattr(rig.cache, "require_shift", require)
    rig.cache_manager.shift(sequence)
    assert rig.cache_manager.prefix_cache.evict_candidates() == left
    assert ("shift" in [call[0] for call in rig.cache.calls]) == (helps != [9])


def saved(n: int) -> Saved:
    return Saved(n, None, (SavedRows(np.arange(n, dtype=np.int32), ()),))


@pytest.mark.parametrize(("n_sequences", "n", "left"), [
    (5, 40, [0, 1, 2]),  # fits
    (5, 41, [1, 2]), (5, 71, [2]), (5, 100, []),
    (3, 10, [1, 2]),  # cells enough, but no sequence
    (3, 50, [1, 2]),
])  # fmt: skip
def test_what_is_put_back_displaces_no_more_than_it_must(n_sequences: int, n: int, left: list[int]) -> None:
    rig = Rig(sequences=n_sequences)
    for length in (30, 20, 10):
        keep(rig, length)
    rig.cache_manager.pinned.restore(PinnedPrefix(), Inputs.text(list(range(n))), saved(n), 9.0)
    assert rig.cache_manager.prefix_cache.evict_candidates() == left
    assert rig.cache.calls[-1][0] == "restore"
    rig.cache_manager.prefix_cache.check()


@pytest.mark.parametrize(("n_sequences", "n", "why"), [
    (5, 91, "90 cells are free; sessions and requests hold the others"),
    (2, 1, "hold all sequences of the cache"),
])  # fmt: skip
def test_what_does_not_fit_at_all_displaces_nobody(n_sequences: int, n: int, why: str) -> None:
    rig = Rig(sequences=n_sequences)
    rig.cache_manager.pinned.restore(PinnedPrefix(), Inputs.text(list(range(10))), saved(10), 1.0)
    if n_sequences == 2:
        rig.cache_manager.pinned.restore(PinnedPrefix(), Inputs.text([]), saved(0), 1.0)
    else:
        keep(rig, 30)
        keep(rig, 20)
    candidates, calls = rig.cache_manager.prefix_cache.evict_candidates(), list(rig.cache.calls)
    with pytest.raises(ContextOverflowError, match=why):
        rig.cache_manager.pinned.restore(PinnedPrefix(), Inputs.text(list(range(n))), saved(n), 9.0)
    assert (rig.cache_manager.prefix_cache.evict_candidates(), rig.cache.calls) == (candidates, calls)
    rig.cache_manager.prefix_cache.check()


class StatefulCache(FakeCache):
    """States at some positions, of which a window lets some be resumed."""

    def __init__(self, states: Collection[int], resumable: Collection[int]) -> None:
        super().__init__(100)
        self._states, self._resumable = states, {0, *resumable}

    @property
    def recurrent(self) -> StatefulCache:  # type: ignore[override]
        return self

    def latest(self, sequence: int, most: int) -> int:
        return max((position for position in self._states if position <= most), default=0)

    def can_resume(self, sequence: int, position: int) -> bool:
        return position in self._resumable

    def hold(self, sequence: int) -> None: ...

    def release(self, sequence: int, length: int) -> None: ...


@pytest.mark.parametrize(("resumable", "begin"), [({7}, 7), ({6, 4}, 6), ({4}, 4), ({2}, 2), ((), 0)])
def test_a_wrong_draft_goes_back_to_where_all_caches_can_resume(resumable: Collection[int], begin: int) -> None:
    rig = Rig(StatefulCache({2, 4, 6}, resumable))
    sequence = rig.request([1, 2, 3])
    rig.begin(sequence)
    rig.compute(sequence, 3)
    sequence.sampled += [1, 2, 3, 4, 5]
    rig.compute(sequence, 5)
    sequence.submitted = 7
    rig.cache_manager.take_back(sequence)
    assert (sequence.submitted, rig.cache.lengths[0], rig.cache_manager.prefix_cache.length(0)) == (begin,) * 3
    assert sequence.context.tokens.tolist() == [1, 2, 3, 1, 2, 3, 4, 5]
    assert sequence.decoding == (begin >= 3), "behind its prompt it goes on as an answer, before that as a prompt"
    assert sequence.decoding or sequence.n_inputs == 8


def keep(rig: Rig, length: int) -> None:
    """A request of as many tokens that ends, and stays in the cache."""
    sequence = rig.request([1000 * length + i for i in range(length)])
    rig.begin(sequence)
    rig.compute(sequence)
    rig.leave(sequence)


def test_after_a_fault_no_history_is_trusted(rig: Rig) -> None:
    ended, live = rig.request([1, 2, 3]), rig.request([4, 5, 6])
    for sequence in (ended, live):
        rig.begin(sequence)
        rig.compute(sequence)
    rig.leave(ended)
    rig.cache_manager.forget()
    assert [rig.cache_manager.prefix_cache.state(i) for i in range(2)] == ["free", "live"]
    assert rig.cache.room == 97
