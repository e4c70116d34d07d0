"""PrefixCache: tables for what can be reused and who is evicted, and a naive model of lists for everything together."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from ollama_engine.input import Input
from ollama_engine.runner.prefix.prefix_cache import PrefixCache
from ollama_engine.runner.prefix.start import Start
from ollama_engine.runner.request.inputs import Inputs, floor_cut
from tests.support.media import image
from tests.support.suite import scaled

TEXT = [Input(1), Input(2), Input(3), Input(4), Input(5)]
IMAGE = image(7)
OTHER_IMAGE = image(8)
LOOSE = image(7, grouped=False)


def prefix_cache(*finished: list[Input], n_sequences: int = 4) -> PrefixCache:
    """Finished histories in sequences 0, 1, ..., used at times 0, 1, ..."""
    made = PrefixCache(n_sequences)
    for now, inputs in enumerate(finished):
        taken = made.take(now)
        assert taken is not None
        made.extend(taken.sequence, Inputs.of(inputs))
        made.finish(taken.sequence, now)
    return made


@pytest.mark.parametrize(
    ("held", "prompt", "expected"),
    [
        ([], TEXT, (None, 0)),
        ([TEXT], [], (None, 0)),
        ([TEXT], [Input(1)], (None, 0)),  # the last input is always computed
        ([TEXT], TEXT, (0, 4)),
        ([TEXT], TEXT[:3], (0, 2)),
        ([TEXT[:3]], TEXT, (0, 3)),
        ([TEXT], [Input(2), *TEXT], (None, 0)),
        ([TEXT[:2], TEXT[:4], TEXT[:3]], TEXT, (1, 4)),
        ([TEXT[:3], TEXT[:3]], TEXT, (0, 3)),  # the first of equals
        ([[*TEXT[:3], Input(8)], [*TEXT[:2], Input(8)]], TEXT, (0, 3)),
        ([[*IMAGE, *TEXT]], [*IMAGE, *TEXT], (0, 7)),
        ([[*IMAGE, *TEXT]], [*OTHER_IMAGE, *TEXT], (None, 0)),
        ([[*TEXT, *IMAGE]], [*TEXT, *OTHER_IMAGE, Input(1)], (0, 5)),
        ([[*TEXT, *IMAGE]], [*TEXT, *IMAGE], (0, 5)),  # the last input is computed, and so its group
        ([[*TEXT, *IMAGE, Input(6)]], [*TEXT, *IMAGE, Input(7)], (0, 8)),
        ([[*TEXT, Input(9), Input(0), Input(0)]], [*TEXT, *IMAGE, Input(7)], (0, 5)),  # a text that looks alike
        ([[*TEXT, *IMAGE]], [*TEXT, Input(9), Input(0), Input(0), Input(1)], (0, 5)),
        ([[*TEXT, *IMAGE[:2]]], [*TEXT, *IMAGE, Input(1)], (0, 5)),  # half a group is of no use
        ([[*TEXT, *LOOSE[:2]]], [*TEXT, *LOOSE, Input(1)], (0, 7)),  # half an item without a group is
        ([[*TEXT, *LOOSE, *LOOSE]], [*TEXT, *LOOSE, *LOOSE, Input(1)], (0, 11)),
        ([[*TEXT, *LOOSE, *LOOSE]], [*TEXT, *LOOSE, *image(8, grouped=False), Input(1)], (0, 8)),
    ],
)
def test_longest_prefix(held: list[list[Input]], prompt: list[Input], expected: tuple[int | None, int]) -> None:
    made = PrefixCache(4)
    for inputs in held:
        taken = made.take(0)
        assert taken is not None
        # Batch by batch: a history may end within what was a group.
        whole = Inputs.of([*inputs, *[Input(0)] * 3])
        free = Inputs(whole.tokens, whole.media)
        for begin in range(0, len(inputs), 2):
            made.extend(taken.sequence, free.part(begin, min(begin + 2, len(inputs))))
    assert made.longest_prefix(Inputs.of(prompt)) == expected


@pytest.mark.parametrize("differs_at", [0, 1, 63, 64, 65, 575, 576, 577, 5000, 40_000, 69_999, None])
def test_longest_prefix_of_long_histories(differs_at: int | None) -> None:
    tokens = [i % 1000 for i in range(70_000)]
    other = list(tokens)
    if differs_at is not None:
        other[differs_at] = 1001
    made = PrefixCache(1)
    assert made.take(0) == (0, False)
    made.extend(0, Inputs.text(other))
    assert made.longest_prefix(Inputs.text(tokens)).length == (69_999 if differs_at is None else differs_at)


@pytest.mark.parametrize(
    ("resumable", "expected"),
    [
        (lambda sequence, length: length, (0, 7)),
        (lambda sequence, length: 0, (None, 0)),
        (lambda sequence, length: min(length, 5), (0, 2)),  # not within the image
        (lambda sequence, length: 4 * (length // 4), (None, 0)),
        (lambda sequence, length: length if sequence == 1 else 0, (1, 6)),
    ],
)
def test_what_the_cache_cannot_resume(resumable: object, expected: tuple[int | None, int]) -> None:
    inputs = [Input(1), Input(2), *image(7, 4), Input(3), Input(4)]
    made = prefix_cache(inputs, [*inputs[:6], Input(8)])
    if expected == (None, 0):
        assert made.longest_prefix(Inputs.of(inputs[:6]), resumable).length == 0  # type: ignore[arg-type]
    else:
        assert made.longest_prefix(Inputs.of(inputs), resumable) == expected  # type: ignore[arg-type]


def test_a_shifted_history_is_reused_up_to_what_it_kept() -> None:
    """What stays has seen what left: its keys and values are not those of the shorter text."""
    made = prefix_cache([Input(token) for token in range(1, 11)])
    made.resume(0, 1)
    made.shift(0, 2, 3)
    assert made.tokens(0).tolist() == [1, 2, 6, 7, 8, 9, 10]
    assert made.longest_prefix(Inputs.text([1, 2, 6, 7, 8])) == (0, 2)
    made.shift(0, 4, 1)
    assert made.longest_prefix(Inputs.text([1, 2, 6, 7, 9, 10, 11])) == (0, 2)
    made.truncate(0, 2)
    made.append(0, 3)
    assert made.longest_prefix(Inputs.text([1, 2, 3, 4])) == (0, 3)
    made.check()


def test_begin_goes_on_with_a_whole_history() -> None:
    made = prefix_cache(TEXT[:3])
    assert made.begin(Inputs.of(TEXT), 5) == Start(0, None, None, 3)
    assert made.state(0) == "live"
    # Now it is live: the next one shares.
    assert made.begin(Inputs.of(TEXT), 6) == Start(1, None, 0, 3)
    assert made.tokens(1).tolist() == [1, 2, 3]


def test_begin_shares_a_part() -> None:
    made = prefix_cache(TEXT)
    assert made.begin(Inputs.of([*TEXT[:3], Input(8)]), 5) == Start(1, None, 0, 3)
    assert made.length(0) == 5
    assert made.length(1) == 3


def test_begin_evicts_another_than_it_reuses() -> None:
    made = prefix_cache(TEXT, [Input(20)], n_sequences=2)
    assert made.begin(Inputs.of([*TEXT[:3], Input(8)]), 5) == Start(1, 0, 0, 3)


def test_begin_cuts_the_last_one_there_is() -> None:
    made = prefix_cache(TEXT, n_sequences=1)
    assert made.begin(Inputs.of([*TEXT[:3], Input(8)]), 5) == Start(0, 3, None, 3)
    assert made.state(0) == "live"
    assert made.tokens(0).tolist() == [1, 2, 3]
    assert made.begin(Inputs.of(TEXT), 6) is None
    assert made.begin_empty(6) is None


def test_begin_leaves_pinned_ones_as_they_are() -> None:
    made = prefix_cache(TEXT[:3], n_sequences=2)
    made.pin(0)
    assert made.begin(Inputs.of(TEXT), 5) == Start(1, None, 0, 3)
    made.release(1)
    made = prefix_cache(TEXT, n_sequences=1)
    made.pin(0)
    assert made.begin(Inputs.of([*TEXT[:3], Input(8)]), 5) is None
    assert made.tokens(0).tolist() == [1, 2, 3, 4, 5]


def test_the_least_recently_used_leaves_first() -> None:
    made = prefix_cache([Input(1)], [Input(2)], [Input(3)], n_sequences=3)
    made.pin(0)
    assert made.evict_candidates() == [1, 2]
    made.begin(Inputs.text([2, 2]), 7)
    made.finish(1, 8)
    assert made.evict_candidates() == [2, 1]
    made.unpin(0)
    assert made.evict_candidates() == [0, 2, 1]
    assert made.take(9) == (0, True)
    assert made.length(0) == 0
    assert made.take(9, spare=2) == (1, True)
    assert made.take(9, spare=2) is None


def test_reuse_counts_as_use() -> None:
    made = prefix_cache(TEXT, [Input(2)], n_sequences=3)
    assert made.begin(Inputs.of([*TEXT[:3], Input(8)]), 7) == Start(2, None, 0, 3)
    assert made.evict_candidates() == [1, 0]


def test_there_are_as_many_sequences_as_are_asked_for() -> None:
    made = PrefixCache(kept=3)
    for now in range(1000):
        start = made.begin(Inputs.text([7, now]), now)
        assert start is not None
        assert start.sequence == now
        made.extend(now, Inputs.text([7, now]) if not start.length else Inputs.text([now]))
        made.pin(now)
        made.finish(now, now)
    assert (len(made), made.has_free, made.evict_candidates()) == (1000, True, [])
    for sequence in (5, 600):
        made.unpin(sequence)
        made.release(sequence)
    assert [made.take(1000).sequence for _ in range(3)] == [5, 600, 1000]  # type: ignore[union-attr]
    made.check()


def test_some_finished_histories_are_kept() -> None:
    made = PrefixCache(kept=3)
    for now in range(5):
        taken = made.take(now)
        assert taken == (now % 3, now >= 3)
        made.append(taken.sequence, now)
        made.finish(taken.sequence, now)
    made.pin(1)
    assert made.take(5) == (3, False)  # one that is pinned is none of these
    made.append(3, 5)
    made.finish(3, 5)
    assert made.evict_candidates() == [2, 0, 3]
    assert made.surplus() == []
    made.unpin(1)
    assert made.evict_candidates() == [2, 0, 1, 3]
    assert made.surplus() == [2]
    made.pin(1)
    assert made.take(6, spare=2) == (0, True)
    made.check()


def test_an_empty_history_is_not_kept() -> None:
    made = PrefixCache(1)
    assert made.take(0) == (0, False)
    made.finish(0, 1)
    assert made.state(0) == "free"
    assert made.take(0) == (0, False)
    made.pin(0)
    made.finish(0, 1)
    assert (made.state(0), made.pinned(0)) == ("finished", True)
    made.unpin(0)
    assert made.state(0) == "free"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda made: made.length(4), "sequences are 0 to 2, got 4"),
        (lambda made: made.length(-1), "sequences are 0 to 2, got -1"),
        (lambda made: made.append(0, 1), "is finished, only a live one can change"),
        (lambda made: made.extend(2, Inputs.text([1])), "is free, only a live one can change"),
        (lambda made: made.truncate(0, 6), "a history of 5 inputs"),
        (lambda made: made.shift(1, 0, 2), "a history of 1 inputs"),
        (lambda made: made.share(0, 1, 2), "cannot take over another's"),
        (lambda made: made.resume(1, 0), "only a finished one can be resumed"),
        (lambda made: made.release(2), "is free"),
        (lambda made: made.pin(2), "nothing to pin"),
        (lambda made: made.unpin(0), "is not pinned"),
        (lambda made: made.finish(0, 0), "only a live one"),
    ],
)
def test_refused(call: object, message: str) -> None:
    made = prefix_cache(TEXT)
    assert made.take(1) == (1, False)
    made.append(1, 5)
    assert made.take(1) == (2, False)
    made.release(2)
    with pytest.raises(ValueError, match=message):
        call(made)  # type: ignore[operator]
    made.check()
    assert made.tokens(0).tolist() == [1, 2, 3, 4, 5]
    assert made.tokens(1).tolist() == [5]


def test_pinned_ones_are_not_released() -> None:
    made = prefix_cache(TEXT)
    made.pin(0)
    with pytest.raises(ValueError, match="is pinned"):
        made.release(0)


def test_none_at_all() -> None:
    with pytest.raises(ValueError, match="at least one sequence"):
        PrefixCache(0)


# -- against lists -----------------------------------------------------------------------------------------------------

pieces = st.lists(st.sampled_from([[Input(1)], [Input(2)], IMAGE, OTHER_IMAGE]), max_size=6).map(
    lambda runs: [item for run in runs for item in run]
)


@dataclass
class Model:
    """One sequence as a list, and how many of its inputs were computed as if nothing had ever been discarded."""

    inputs: list[Input] = field(default_factory=list)
    exact: int = 0
    state: str = "free"
    pins: int = 0
    used_at: int = 0


class AgainstLists(RuleBasedStateMachine):
    sequences = Bundle("sequences")

    @initialize(target=sequences, n=st.integers(1, 5), kept=st.integers(1, 5))
    def open(self, n: int, kept: int) -> int:
        self.made = PrefixCache(n, kept=kept)
        self.kept = kept
        self.model = [Model() for _ in range(n)]
        self.now = 0
        return 0

    def reference(self, prompt: list[Input]) -> int:
        """Length of the longest prefix."""
        limit = floor_cut(max(0, len(prompt) - 1), Inputs.of(prompt).groups)
        best = 0
        for twin in self.model:
            n = 0
            while n < min(twin.exact, limit) and twin.inputs[n] == prompt[n]:
                n += 1
            best = max(best, floor_cut(n, Inputs.of(prompt).groups))
        return best

    def some(self, *states: str) -> list[int]:
        return [i for i, twin in enumerate(self.model) if twin.state in states]

    @rule(prompt=pieces, data=st.data())
    def begin(self, prompt: list[Input], data: st.DataObject) -> None:
        self.now += 1
        if data.draw(st.booleans()) and self.some("live", "finished"):
            known = self.model[data.draw(st.sampled_from(self.some("live", "finished")))].inputs
            prompt = known[: floor_cut(data.draw(st.integers(0, len(known))), Inputs.of(known).groups)] + prompt
        expected = self.reference(prompt)
        assert self.made.longest_prefix(Inputs.of(prompt)).length == expected
        start = self.made.begin(Inputs.of(prompt), self.now)
        if start is None:
            evictable = [
                twin for twin in self.model if twin.state == "free" or (twin.state == "finished" and not twin.pins)
            ]
            assert not evictable
            return
        self.follow(start, prompt)
        assert start.length == expected

    def follow(self, start: Start, prompt: list[Input]) -> None:
        """Do with lists what the caller does with cells."""
        mine = self.model[start.sequence]
        assert mine.state == "free" or (mine.state == "finished" and not mine.pins)
        if start.remove_from is not None:
            assert mine.state == "finished"
            if start.remove_from == 0:
                oldest = [twin.used_at for twin in self.model if twin.state == "finished" and not twin.pins]
                assert len(oldest) >= self.kept or not self.some("free")
                spared = start.source is not None and self.model[start.source].used_at == min(oldest)
                assert mine.used_at == min(oldest) or spared
            del mine.inputs[start.remove_from :]
            mine.exact = min(mine.exact, len(mine.inputs))
        if start.source is not None:
            assert not mine.inputs
            giver = self.model[start.source]
            mine.inputs = giver.inputs[: start.length]
            mine.exact = min(giver.exact, start.length)
            giver.used_at = self.now
        mine.state, mine.used_at = "live", self.now
        assert mine.exact == len(mine.inputs) == start.length
        assert mine.inputs == prompt[: start.length]

    @precondition(lambda self: self.some("live"))
    @rule(data=st.data(), inputs=pieces)
    def extend(self, data: st.DataObject, inputs: list[Input]) -> None:
        sequence = data.draw(st.sampled_from(self.some("live")))
        twin = self.model[sequence]
        if inputs == [Input(1)]:
            self.made.append(sequence, 1)
        else:
            self.made.extend(sequence, Inputs.of(inputs))
        if twin.exact == len(twin.inputs):
            twin.exact += len(inputs)
        twin.inputs = twin.inputs + inputs

    @precondition(lambda self: self.some("live", "finished"))
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.some("live", "finished")))
        twin = self.model[sequence]
        length = floor_cut(data.draw(st.integers(0, len(twin.inputs))), Inputs.of(twin.inputs).groups)
        self.made.truncate(sequence, length)
        twin.inputs = twin.inputs[:length]
        twin.exact = min(twin.exact, length)
        if not twin.inputs and twin.state == "finished" and not twin.pins:
            self.model[sequence] = Model()

    @precondition(lambda self: self.some("live"))
    @rule(data=st.data())
    def shift(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.some("live")))
        twin = self.model[sequence]
        cuts = [floor_cut(data.draw(st.integers(0, len(twin.inputs))), Inputs.of(twin.inputs).groups) for _ in range(2)]
        keep, end = sorted(cuts)
        self.made.shift(sequence, keep, end - keep)
        if keep < end:
            twin.exact = min(twin.exact, keep)
        twin.inputs = twin.inputs[:keep] + twin.inputs[end:]

    @precondition(lambda self: self.some("live"))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.now += 1
        sequence = data.draw(st.sampled_from(self.some("live")))
        self.made.finish(sequence, self.now)
        twin = self.model[sequence]
        twin.state, twin.used_at = "finished", self.now
        if not twin.inputs and not twin.pins:
            self.model[sequence] = Model()

    @precondition(lambda self: self.some("live", "finished"))
    @rule(data=st.data(), pin=st.booleans())
    def pin(self, data: st.DataObject, pin: bool) -> None:
        sequence = data.draw(st.sampled_from(self.some("live", "finished")))
        twin = self.model[sequence]
        if pin:
            self.made.pin(sequence)
            twin.pins += 1
        elif twin.pins:
            self.made.unpin(sequence)
            twin.pins -= 1
            if not twin.pins and not twin.inputs and twin.state == "finished":
                self.model[sequence] = Model()

    @precondition(lambda self: any(not self.model[i].pins for i in self.some("live", "finished")))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from([i for i in self.some("live", "finished") if not self.model[i].pins]))
        self.made.release(sequence)
        self.model[sequence] = Model()

    @invariant()
    def same(self) -> None:
        self.made.check()
        assert all(twin.state == "free" for twin in self.model[len(self.made) :])
        for sequence, twin in enumerate(self.model[: len(self.made)]):
            assert self.made.tokens(sequence).tolist() == [i.token for i in twin.inputs]
            assert self.made.state(sequence) == twin.state
            assert self.made.pinned(sequence) == (twin.pins > 0)
        evictable = [
            (twin.used_at, i) for i, twin in enumerate(self.model) if twin.state == "finished" and not twin.pins
        ]
        assert self.made.evict_candidates() == [i for _, i in sorted(evictable)]


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=scaled(100, quick=25), stateful_step_count=30)
