"""Rules for every kind of cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import SavedRows, packing
from ollama_engine.ml.graph.context import Context
from tests.kvcache.drawing import ints
from tests.kvcache.kinds import KINDS, LAYOUTS, MEMORY, N_CELLS, NULL_KINDS, Kind, NullKind, answers, fed, run, stepped
from tests.support.suite import scaled

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
each_shiftable = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.shifts], ids=str)
any_kind = pytest.mark.parametrize("kind", [*KINDS, *NULL_KINDS], ids=str)
layouts = pytest.mark.parametrize("layout", LAYOUTS)
flash_or_not = pytest.mark.parametrize("layout", ["indices", "permuted"])


def bits(saved: Sequence[SavedRows]) -> list[tuple[bytes, ...]]:
    """Positions and rows of a sequence."""
    return [(part.positions.tobytes(), *(rows.tobytes() for rows in part.rows)) for part in saved]


class Machine(RuleBasedStateMachine):
    """Any history of calls: where `can_resume` says yes, attention is that of the whole history.

    Groups, whose tokens see each other, come in one batch; nothing ends within one.
    """

    kind: Kind
    layout: str

    def __init__(self) -> None:
        super().__init__()
        # A table of a few cells has short runs.
        self.short_runs = patch.multiple(packing, LEAST_RUN=2, AT_ONCE=3)
        self.short_runs.start()
        self.manager = fed(self.kind, self.layout)
        self.f = self.manager.__enter__()
        self.groups: dict[int, list[range]] = {s: [] for s in range(3)}

    def teardown(self) -> None:
        self.manager.__exit__(None, None, None)
        self.short_runs.stop()

    def cut(self, sequence: int, position: int) -> int:
        """The greatest position up to this one that ends no group halfway."""
        return next((group.start for group in self.groups[sequence] if position in group[1:]), position)

    @rule(
        pieces=st.dictionaries(st.integers(0, 2), st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1),
        images=st.sets(st.integers(0, 6)),
    )  # fmt: skip
    def step(self, pieces: dict[int, tuple[int, int]], images: set[int]) -> None:
        """So many tokens of each sequence, the last few of which are a group."""
        rows, blocks = [], []
        for sequence, (n, in_group) in pieces.items():
            begin = self.f.next_position(sequence)
            if not self.f.cache.can_resume(sequence, begin):
                self.f.remove(sequence)
                self.groups[sequence] = []
                begin = 0
            rows += run(sequence, begin, begin + n)
            blocks += [-1] * max(0, n - in_group) + [begin + 7] * min(n, in_group)
        with_image = sorted(row for row in images if row < len(rows)) if self.kind.sees_images else []
        batch = self.f.batch(rows, with_image, blocks)
        try:
            self.f.cache.require_room(batch)
        except ContextOverflowError:
            before = answers(self.f.cache)
            with pytest.raises(ContextOverflowError):
                self.f.cache.begin(batch)
            assert answers(self.f.cache) == before
            assert len(rows) > self.f.cache.room or with_image
            self.f.remove(max(pieces))
            self.groups[max(pieces)] = []
            return
        assert len(rows) <= self.f.cache.room
        self.f.feed(rows, with_image, blocks if any(block >= 0 for block in blocks) else None)
        for sequence, (n, in_group) in pieces.items():
            end = self.f.next_position(sequence)
            self.groups[sequence].append(range(end - min(n, in_group), end))

    @rule(source=st.integers(0, 2), into=st.integers(0, 2), end=st.integers(0, 20))
    def share(self, source: int, into: int, end: int) -> None:
        if source != into:
            self.f.remove(into)
            end = self.cut(source, end)
            self.f.share(source, into, end)
            self.groups[into] = [group for group in self.groups[source] if group.stop <= end]

    @rule(sequence=st.integers(0, 2), begin=st.integers(0, 20), end=st.none() | st.integers(0, 20))
    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        begin, end = self.cut(sequence, begin), None if end is None else self.cut(sequence, end)
        self.f.remove(sequence, begin, end)
        if end is None or end > begin:
            stop = N_CELLS * 100 if end is None else end
            kept = [group for group in self.groups[sequence] if group.stop <= begin or group.start >= stop]
            self.groups[sequence] = kept

    @rule(sequence=st.integers(0, 2), begin=st.integers(0, 8), discard=st.integers(1, 8))
    def shift(self, sequence: int, begin: int, discard: int) -> None:
        shiftable = self.f.cache.shiftable
        if shiftable is None:
            assert not self.kind.shifts
            return
        end = self.cut(sequence, begin + discard)
        begin = min(self.cut(sequence, begin), end)
        before = answers(self.f.cache)
        try:
            shiftable.require_shift(sequence, begin, end - begin)
        except (ContextOverflowError, ValueError) as refused:
            with pytest.raises(type(refused)):
                shiftable.shift(sequence, begin, end - begin)
            assert answers(self.f.cache) == before
            return
        self.f.shift(sequence, begin, end - begin)
        kept = [group for group in self.groups[sequence] if group.stop <= begin or group.start >= end]
        back = end - begin
        self.groups[sequence] = [g if g.stop <= begin else range(g.start - back, g.stop - back) for g in kept]

    @rule(chosen=st.sets(st.integers(0, 2), min_size=1), gaps=st.integers(1, 6))
    def defrag(self, chosen: set[int], gaps: int) -> None:
        """Keys and values of all sequences keep their bits; what they attend to, `step` looks at."""
        contract, saveable = self.f.cache.defragmentable, self.f.cache.saveable
        assert saveable is not None
        if contract is None:
            assert LAYOUTS[self.layout].get("paged", True)
            return
        before = [bits(saveable.save(sequence)) for sequence in range(3)]
        for _ in range(gaps):
            contract.defrag(ints(sorted(chosen)), 1 << 20)
        self.f.cache.check()
        assert [bits(saveable.save(sequence)) for sequence in range(3)] == before

    @rule(source=st.integers(0, 2), into=st.integers(0, 2))
    def save_and_restore(self, source: int, into: int) -> None:
        saveable = self.f.cache.saveable
        assert saveable is not None
        saved, groups = saveable.save(source), list(self.groups[source])
        tokens, images = (dict(table.get(source, {})) for table in (self.f.tokens, self.f.images))
        self.f.remove(into)
        try:
            saveable.require_restore(saved)
        except ContextOverflowError:
            before = answers(self.f.cache)
            with pytest.raises(ContextOverflowError):
                saveable.restore(into, saved)
            assert answers(self.f.cache) == before
            self.groups[into] = []
            return
        saveable.restore(into, saved)
        self.f.tokens[into], self.f.images[into], self.groups[into] = tokens, images, groups

    @rule()
    def scrub(self) -> None:
        self.f.cache.scrub()

    @invariant()
    def is_consistent(self) -> None:
        self.f.cache.check()
        usage = self.f.cache.usage
        assert 0 <= usage.shared <= usage.used
        assert all(self.f.cache.can_resume(sequence, 0) for sequence in range(3))


@each_kind
@layouts
def test_any_history_of_calls(kind: Kind, layout: str) -> None:
    machine = type("Machine", (Machine,), {"kind": kind, "layout": layout})
    examples = scaled(15 if layout in ("indices", "permuted") else 6, quick=3)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=15))


# -- media -------------------------------------------------------------------------------------------------------------


@each_kind
@layouts
def test_a_group_stays_whole_wherever_it_goes(kind: Kind, layout: str) -> None:
    """Text, an image of 5 tokens that see each other, text: in prompts, shared, saved, restored, shifted, removed."""
    text, media = [-1] * 3, [4] * 5
    with fed(kind, layout) as f, fed(kind, layout) as elsewhere:
        f.feed([*run(0, 0, 8), *run(1, 0, 8)], blocks=[*text, *media, *media, *text])
        f.feed(run(0, 8, 10))
        if f.cache.can_resume(0, 8):
            f.share(0, 2, 8)
            f.feed([*run(2, 8, 11), (0, 10)], blocks=[4, 4, 4, -1])
        saveable, other = f.cache.saveable, elsewhere.cache.saveable
        assert saveable is not None
        assert other is not None
        elsewhere._n_tokens = 100  # none that was put here
        elsewhere.restore(saveable.save(0), 0, 7, f)
        at = f.next_position(0)
        elsewhere.feed([*run(7, at, at + 4)], blocks=[-1, 6, 6, 6])
        if kind.shifts:
            f.shift(0, 3, 5)
            if f.cache.can_resume(0, at - 5):
                f.feed(run(0, at - 5, at - 1), blocks=[8, 8, -1, -1])
        f.remove(1, 5)
        f.remove(1)
        f.feed(run(1, 0, 8), blocks=[*media, *text])


@each_kind
@layouts
def test_two_groups_of_a_batch_see_nothing_of_each_other(kind: Kind, layout: str) -> None:
    with fed(kind, layout) as f:
        f.feed([*run(0, 0, 6), *run(1, 0, 6)], blocks=[0, 0, 0, 1, 1, 1, 0, 0, -1, -1, 1, 1])
        f.feed([(0, 6), (1, 6)])


# -- steps -------------------------------------------------------------------------------------------------------------


@any_kind
@layouts
def test_worst_graphs_are_built_without_taking_cells(kind: Kind | NullKind, layout: str) -> None:
    with stepped(kind, layout) as f:
        f.feed(run(0, 0, 5))
        for _ in f.step_cache.worst_cases(8):
            with Context(f.backend) as ctx:
                f.step_cache.build_inputs(ctx)
                for layer in range(len(kind.layers)):
                    out = f.layer(ctx, layer, f.batch(run(1, 0, 8), [0]))
                    assert out is not None
                    ctx.forward(out)
                ctx.reserve()
        f.feed(run(1, 0, 5))


@each_kind
def test_reserving_takes_no_cells(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 5))
        before = answers(f.cache)
        assert list(f.cache.worst_cases(8))
        for contract in (f.cache.shiftable, f.cache.saveable):
            if contract is not None:
                contract.reserve()
        assert answers(f.cache) == before


@any_kind
def test_graphs_of_one_shape_have_one_key(kind: Kind | NullKind) -> None:
    with stepped(kind) as f:
        keys = set()
        for position in range(2):
            f.step_cache.begin(f.batch([(0, position)]))
            keys.add(f.step_cache.shape_key)
        assert len(keys) == 1
        f.step_cache.begin(f.batch(run(1, 0, 3)))
        assert f.step_cache.shape_key not in keys


@pytest.mark.parametrize("kind", NULL_KINDS, ids=str)
@flash_or_not
def test_where_nothing_is_stored_batches_know_nothing_of_each_other(kind: NullKind, layout: str) -> None:
    with stepped(kind, layout) as f:
        for _ in range(2):
            f.feed([*run(0, 0, 7), *run(1, 0, 3), (2, 0)])


@any_kind
def test_a_step_that_failed_can_be_repeated(kind: Kind | NullKind) -> None:
    with stepped(kind) as f:
        if isinstance(kind, Kind):
            f.feed(run(0, 0, 14))
        failed = f.batch([*run(0, 14, 18), *run(1, 0, 2)], [1] if isinstance(kind, Kind) and kind.sees_images else ())
        f.step_cache.begin(failed)
        f.step_cache.roll_back(failed)
        f.feed([*run(0, 14, 18), *run(1, 0, 2)])


@each_kind
def test_what_was_rolled_back_is_gone(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 14), [2] if kind.sees_images else ())
        before = answers(f.cache)
        failed = f.batch([*run(0, 14, 18), *run(1, 0, 2)], [1] if kind.sees_images else ())
        f.cache.begin(failed)
        f.cache.roll_back(failed)
        assert f.cache.can_resume(0, 14)
        assert answers(f.cache)[0].shared == before[0].shared
        f.remove(0)
        assert f.cache.usage.used == 0


@each_kind
@pytest.mark.parametrize("launched", [False, True])
def test_a_token_that_failed_is_gone(kind: Kind, launched: bool) -> None:
    """What a token changes in place is lost once it is launched: its sequence goes on from a checkpoint."""
    with fed(kind) as f:
        f.feed(run(0, 0, 14))
        failed = f.batch([(0, 14)])
        f.cache.begin(failed)
        if launched:
            f.compute(failed)
        f.cache.roll_back(failed)
        f.cache.check()
        lost = launched and f.cache.recurrent is not None
        assert f.cache.can_resume(0, 14) != lost
        if lost:
            f.remove(0, 12)
        f.feed(run(0, 12 if lost else 14, 16))


@each_kind
def test_a_row_whose_sequence_left_before_the_launch_changes_nothing(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed([*run(0, 0, 14), *run(1, 0, 14)])
        rows = [(0, 14), (1, 14)]
        batch = f.batch(rows)
        f.cache.begin(batch)
        if f.cache.recurrent is not None:
            f.cache.recurrent.release(0, 14)
        f._n_tokens += len(rows)
        f.tokens[1][14] = int(batch.tokens[1])
        f.compute(batch)
        f.remove(0, 14)
        assert f.cache.can_resume(0, 14)
        f.feed([(0, 14), (1, 15)])


@each_kind
def test_a_token_leaves_what_other_sequences_share(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 14))
        f.share(0, 1, 14)
        f.feed([(0, 14)])
        f.feed([(1, 14)])
        f.feed([(1, 15)])
        f.feed([(0, 15)])


@each_kind
def test_overflow_changes_nothing(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 20))
        f.feed(run(1, 0, 7))
        before = answers(f.cache)
        too_many = f.batch(run(2, 0, N_CELLS + 1))
        for call in (f.cache.require_room, f.cache.begin):
            with pytest.raises(ContextOverflowError, match="do not fit"):
                call(too_many)
        assert answers(f.cache) == before
        f.feed(run(0, 20, 22))
        f.feed(run(1, 7, 8))


# -- sequences ---------------------------------------------------------------------------------------------------------


@each_kind
def test_a_fork_goes_on_by_itself(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 12))
        used = f.cache.usage.used
        f.share(0, 1, 12)
        assert f.cache.usage.used == used
        f.feed([*run(1, 12, 14), *run(0, 12, 13)])
        f.remove(0)
        f.feed(run(1, 14, 15))
        f.remove(1)
        assert f.cache.usage.used == 0


@each_kind
def test_only_an_empty_sequence_can_share(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed([*run(0, 0, 3), *run(1, 0, 3)])
        before = answers(f.cache)
        with pytest.raises(ValueError, match="sequence 1 has"):
            f.cache.share(0, 1, 2)
        assert answers(f.cache) == before


@each_kind
def test_sequences_have_any_number(kind: Kind) -> None:
    with fed(kind) as f:
        many = [0, 63, 64, 1000, 1 << 19]
        f.feed([(s, 0) for s in many])
        f.share(1 << 19, 77777, 1)
        f.feed([(s, 1) for s in [*many, 77777]])
        for sequence in [*many, 77777]:
            f.remove(sequence)
        assert f.cache.usage.used == 0


@each_shiftable
def test_nothing_is_shifted_by_nothing(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 9))
        before = answers(f.cache)
        shiftable = f.cache.shiftable
        assert shiftable is not None
        for begin, discard in ((-1, 1), (0, 0), (2, -1)):
            for call in (shiftable.require_shift, shiftable.shift):
                with pytest.raises(ValueError, match="a shift begins at 0 or later"):
                    call(0, begin, discard)
        assert answers(f.cache) == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.memory], ids=str)
@pytest.mark.parametrize("back", [1, 3, MEMORY])
@pytest.mark.parametrize("piece", [1, 7])
def test_what_is_remembered_can_be_resumed(kind: Kind, back: int, piece: int) -> None:
    for end in scaled(range(1, 22), quick=(1, 4, 9, 21)):
        with fed(kind) as f:
            for begin in range(0, end, piece):
                f.feed(run(0, begin, min(end, begin + piece)))
            position = max(0, f.next_position(0) - back)
            assert f.cache.can_resume(0, position)
            f.share(0, 1, position)
            assert f.cache.can_resume(1, position)
            f.feed(run(1, position, position + 2))


@each_kind
def test_memory_is_counted_and_given_back(kind: Kind) -> None:
    with fed(kind) as f:
        assert sum(f.cache.nbytes.values()) > 0
        f.cache.close()
        f.cache.close()
        assert sum(f.cache.nbytes.values()) == 0


def test_every_kind_is_here() -> None:
    """A new cache class joins the contract by joining KINDS or NULL_KINDS."""
    made = set()
    for kind, layout in itertools.product((*KINDS, *NULL_KINDS), ("indices", "masks")):
        with stepped(kind, layout) as f:
            made |= {type(f.step_cache).__name__, *(type(c).__name__ for c in getattr(f.step_cache, "caches", ()))}
    assert made == {
        "CausalCache", "CompositeCache", "CompositeStepCache", "CrossAttentionCache", "NullCache", "PagedNullCache",
        "RecurrentCache", "RecurrentStepCache",
    }  # fmt: skip
