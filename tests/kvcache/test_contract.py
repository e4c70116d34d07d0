"""What holds for every kind of cache."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ollama_engine.errors import ContextOverflowError
from ollama_engine.ml.context import Context
from tests.kvcache.kinds import KINDS, MEMORY, N_CELLS, Kind, answers, fed
from tests.suite import scaled

each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
each_storing = pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.null], ids=str)
each_shifting = pytest.mark.parametrize("kind", [k for k in KINDS if not k.null and k.shifts], ids=str)
layouts = pytest.mark.parametrize("flash", [True, False], ids=["flash", "permuted"])


def run(sequence: int, begin: int, end: int) -> list[tuple[int, int]]:
    return [(sequence, position) for position in range(begin, end)]


class Machine(RuleBasedStateMachine):
    """Any history of calls: where `can_resume` says yes, attention is that of the whole history."""

    kind: Kind
    flash: bool

    def __init__(self) -> None:
        super().__init__()
        self.manager = fed(self.kind, self.flash)
        self.f = self.manager.__enter__()

    def teardown(self) -> None:
        self.manager.__exit__(None, None, None)

    @rule(pieces=st.dictionaries(st.integers(0, 2), st.integers(1, 9), min_size=1), images=st.sets(st.integers(0, 6)))
    def step(self, pieces: dict[int, int], images: set[int]) -> None:
        rows = []
        for sequence, n in pieces.items():
            begin = self.f.next_position(sequence)
            if not self.f.cache.can_resume(sequence, begin):
                self.f.remove(sequence)
                begin = 0
            rows += run(sequence, begin, begin + n)
        with_image = sorted(row for row in images if row < len(rows)) if self.kind.name.startswith("images") else []
        try:
            self.f.cache.require_room(self.f.batch(rows, with_image))
        except ContextOverflowError:
            before = answers(self.f.cache)
            with pytest.raises(ContextOverflowError):
                self.f.cache.begin(self.f.batch(rows, with_image))
            assert answers(self.f.cache) == before
            assert len(rows) > self.f.cache.room or with_image
            self.f.remove(max(pieces))
            return
        assert len(rows) <= self.f.cache.room
        self.f.feed(rows, with_image)

    @rule(source=st.integers(0, 2), into=st.integers(0, 2), end=st.integers(0, 20))
    def share(self, source: int, into: int, end: int) -> None:
        if source != into:
            self.f.remove(into)
            self.f.share(source, into, end)

    @rule(sequence=st.integers(0, 2), begin=st.integers(0, 20), end=st.none() | st.integers(0, 20))
    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        self.f.remove(sequence, begin, end)

    @rule(sequence=st.integers(0, 2), begin=st.integers(0, 8), discard=st.integers(1, 8))
    def shift(self, sequence: int, begin: int, discard: int) -> None:
        before = answers(self.f.cache)
        try:
            self.f.cache.require_shift(sequence, begin, discard)
        except (ContextOverflowError, ValueError) as refused:
            with pytest.raises(type(refused)):
                self.f.cache.shift(sequence, begin, discard)
            assert answers(self.f.cache) == before
            return
        self.f.shift(sequence, begin, discard)

    @rule()
    def defrag(self) -> None:
        before = answers(self.f.cache)
        self.f.cache.defrag()
        usage, resumable = answers(self.f.cache)
        assert resumable == before[1]
        assert (usage.used, usage.free, usage.shared) == (before[0].used, before[0].free, before[0].shared)

    @rule()
    def scrub(self) -> None:
        self.f.cache.scrub()

    @invariant()
    def is_consistent(self) -> None:
        self.f.cache.check()
        usage = self.f.cache.usage
        assert 0 <= usage.shared <= usage.used <= usage.extent <= usage.used + usage.free
        assert all(self.f.cache.can_resume(sequence, 0) for sequence in range(3))


@each_kind
@layouts
def test_any_history_of_calls(kind: Kind, flash: bool) -> None:
    machine = type("Machine", (Machine,), {"kind": kind, "flash": flash})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=scaled(15, quick=4), stateful_step_count=15, deadline=None)
    )


@each_kind
def test_worst_graphs_are_built_without_taking_cells(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 5))
        before = answers(f.cache)
        f.cache.begin_reserve(8)
        with Context(f.backend) as ctx:
            f.cache.build_inputs(ctx)
            for layer in range(len(kind.layers)):
                out = f._layer(ctx, layer, f.batch(run(1, 0, 8), [0]))
                assert out is not None
                ctx.forward(out)
            ctx.reserve()
        f.cache.reserve_moves()
        assert answers(f.cache) == before


@each_kind
def test_graphs_of_one_shape_have_one_key(kind: Kind) -> None:
    with fed(kind) as f:
        keys = set()
        for position in range(2):
            f.cache.begin(f.batch([(0, position)]))
            keys.add(f.cache.shape_key)
        assert len(keys) == 1
        f.cache.begin(f.batch(run(1, 0, 3)))
        assert f.cache.shape_key not in keys


@each_storing
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


@each_storing
def test_a_step_that_failed_can_be_repeated(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 14))
        f.cache.begin(f.batch(run(0, 14, 18)))
        f.cache.remove(0, 14)
        assert f.cache.can_resume(0, 14)
        f.feed(run(0, 14, 18))


@each_storing
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


@each_storing
def test_only_an_empty_sequence_can_share(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed([*run(0, 0, 3), *run(1, 0, 3)])
        before = answers(f.cache)
        with pytest.raises(ValueError, match="sequence 1 has"):
            f.cache.share(0, 1, 2)
        assert answers(f.cache) == before


@each_shifting
def test_nothing_is_shifted_by_nothing(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 9))
        before = answers(f.cache)
        for begin, discard in ((-1, 1), (0, 0), (2, -1)):
            for call in (f.cache.require_shift, f.cache.shift):
                with pytest.raises(ValueError, match="a shift begins at 0 or later"):
                    call(0, begin, discard)
        assert answers(f.cache) == before


@pytest.mark.parametrize("kind", [k for k in KINDS if k.null or not k.shifts], ids=str)
def test_what_cannot_be_shifted_says_so(kind: Kind) -> None:
    with fed(kind) as f:
        f.feed(run(0, 0, 9))
        assert not f.cache.can_shift
        before = answers(f.cache)
        for call in (f.cache.require_shift, f.cache.shift):
            with pytest.raises(ValueError, match="compute the tokens again"):
                call(0, 0, 1)
        assert answers(f.cache) == before


@pytest.mark.parametrize("kind", [k for k in KINDS if k.memory], ids=str)
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


@each_storing
def test_memory_is_counted_and_given_back(kind: Kind) -> None:
    with fed(kind) as f:
        assert sum(f.cache.nbytes.values()) > 0
        f.cache.close()
        f.cache.close()
        assert sum(f.cache.nbytes.values()) == 0


def test_every_kind_is_here() -> None:
    """A new cache class joins the contract by joining KINDS."""
    made = set()
    for kind in KINDS:
        with fed(kind) as f:
            made |= {type(f.cache).__name__, *(type(c).__name__ for c in getattr(f.cache, "caches", ()))}
    assert made == {"CausalCache", "CompositeCache", "CrossAttentionCache", "NullCache"}
