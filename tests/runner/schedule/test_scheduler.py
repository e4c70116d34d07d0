"""The scheduler: one step by table, then its promises over many random ones."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.runner.request.inputs import Group, ceil_cut
from ollama_engine.runner.schedule.scheduler import (
    FAIR_EVERY,
    BatchLimits,
    Candidate,
    SchedulerState,
    StepPlan,
    choose_victim,
    plan,
)
from tests.support.suite import scaled

START = SchedulerState()
BY_LINE = SchedulerState((), None, FAIR_EVERY - 1)
"""The step that ignores priorities and lengths."""
ROOMY = BatchLimits(batch_size=8, max_outputs=4, free_cells=1000)


def decoder(key: int, priority: int = 0, draft: int = 0) -> Candidate:
    return Candidate(key, 10, 11 + draft, decoding=True, priority=priority)


def prompt(
    key: int, n: int, priority: int = 0, groups: tuple[Group, ...] = (), *, rows_from: int | None = None, begin: int = 0
) -> Candidate:
    return Candidate(key, begin, begin + n, False, rows_from, priority, groups)


@dataclass(frozen=True)
class Case:
    name: str
    candidates: list[Candidate]
    pieces: list[tuple[int, int, int]]
    limits: BatchLimits = ROOMY
    state: SchedulerState = START
    owed: int | None = None
    starved: tuple[int, ...] = ()
    short: int = 0


CASES = [
    Case("nothing", [], []),
    Case("decode", [decoder(1), decoder(2)], [(1, 1, 1), (2, 1, 1)]),
    Case("a prompt that fits", [prompt(1, 5)], [(1, 5, 1)]),
    Case("a prompt that goes on", [prompt(1, 50)], [(1, 8, 0)]),
    Case("the last piece of one", [prompt(1, 3, begin=48)], [(1, 3, 1)]),
    Case("decoding first, prompts take the rest", [prompt(1, 50), decoder(2)], [(2, 1, 1), (1, 7, 0)]),
    Case("prompts share a step", [prompt(1, 5), prompt(2, 5)], [(1, 5, 1), (2, 3, 0)]),
    Case("in turn", [prompt(1, 5), prompt(2, 5)], [(2, 5, 1), (1, 3, 0)], state=SchedulerState((2, 1))),
    Case("the prompt with the fewest inputs left first", [prompt(1, 50), prompt(2, 5)], [(2, 5, 1), (1, 3, 0)]),
    Case(
        "which one goes on before another begins",
        [prompt(1, 5, begin=7), prompt(2, 12)],
        [(1, 5, 1), (2, 3, 0)],
        state=SchedulerState((2, 1)),
    ),
    Case("lengths left aside", [prompt(1, 50), prompt(2, 5)], [(1, 8, 0)], state=BY_LINE),
    Case("priority before length", [prompt(1, 50, 1), prompt(2, 5)], [(1, 8, 0)]),
    Case("prompts before drafts", [prompt(1, 50), decoder(2, draft=3)], [(2, 1, 1), (1, 7, 0)]),
    Case("drafts get what prompts leave", [prompt(1, 4), decoder(2, draft=3)], [(2, 3, 3), (1, 4, 1)]),
    Case(
        "everybody's token before anybody's draft",
        [decoder(k, draft=9) for k in (1, 2, 3)],
        [(1, 2, 2), (2, 1, 1), (3, 1, 1)],
    ),
    Case("a draft as far as cells go", [decoder(1, draft=3)], [(1, 3, 3)], ROOMY._replace(free_cells=3), short=1),
    Case(
        "groups apart",
        [prompt(1, 3, groups=((0, 2),)), prompt(2, 4, groups=((1, 3),))],
        [(1, 3, 1), (2, 1, 0)],
        limits=ROOMY._replace(groups=1),
    ),
    Case(
        "two groups of one prompt",
        [prompt(1, 6, groups=((0, 2), (3, 5)))],
        [(1, 3, 0)],
        limits=ROOMY._replace(groups=1),
    ),
    Case(
        "two groups of three",
        [prompt(1, 6, groups=((0, 2), (3, 5))), prompt(2, 2, groups=((1, 2),))],
        [(1, 6, 1), (2, 1, 0)],
        limits=ROOMY._replace(groups=2),
        state=BY_LINE,
    ),
    Case("newcomers at the end", [prompt(1, 5), prompt(2, 5)], [(2, 5, 1), (1, 3, 0)], state=SchedulerState((2,))),
    Case("priority", [prompt(1, 50), prompt(2, 50, 1)], [(2, 8, 0)]),
    Case(
        "priority left aside",
        [prompt(1, 50), prompt(2, 50, 1)],
        [(1, 8, 0)],
        state=SchedulerState((1, 2), None, FAIR_EVERY - 1),
    ),
    Case(
        "more decoders than places",
        [decoder(key) for key in range(6)],
        [(4, 1, 1), (5, 1, 1), (0, 1, 1), (1, 1, 1)],
        state=SchedulerState((4, 5, 0, 1, 2, 3)),
    ),
    Case(
        "no place for the first prompt: it is owed",
        [*(decoder(key) for key in range(4)), prompt(4, 9)],
        [(key, 1, 1) for key in range(4)],
        limits=ROOMY._replace(batch_size=4),
        owed=4,
    ),
    Case(
        "what is owed is set aside",
        [*(decoder(key) for key in range(4)), prompt(4, 9)],
        [(0, 1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 0)],
        limits=ROOMY._replace(batch_size=4),
        state=SchedulerState((0, 1, 2, 3, 4), 4),
    ),
    # -- rows of logits --
    Case("all rows", [prompt(1, 3, rows_from=0)], [(1, 3, 3)]),
    Case("as many rows as there are", [prompt(1, 9, rows_from=0)], [(1, 4, 4)]),
    Case("the rows of its end", [prompt(1, 7, rows_from=5)], [(1, 7, 2)]),
    Case("rows in the middle of what is left", [prompt(1, 7, begin=2, rows_from=5)], [(1, 7, 4)]),
    Case("inputs before the first row need none", [prompt(1, 8, rows_from=2)], [(1, 6, 4)]),
    Case("a beginning without rows", [prompt(1, 4, rows_from=0), prompt(2, 9, rows_from=2)], [(1, 4, 4), (2, 2, 0)]),
    Case(
        "the last input waits for a row",
        [prompt(1, 4, rows_from=0), prompt(2, 3)],
        [(1, 4, 4), (2, 2, 0)],
        state=BY_LINE,
    ),
    Case(
        "with all that belongs to it",
        [prompt(1, 4, rows_from=0), prompt(2, 3, groups=((1, 3),))],
        [(1, 4, 4), (2, 1, 0)],
        state=BY_LINE,
    ),
    # -- groups --
    Case("a cut before a group", [prompt(1, 20, groups=((6, 10),))], [(1, 6, 0)]),
    Case("a group that fits exactly", [prompt(1, 20, groups=((0, 8),))], [(1, 8, 0)]),
    Case("a group larger than the batch, alone", [prompt(1, 20, groups=((0, 12),))], [(1, 12, 0)]),
    Case(
        "nobody joins it",
        [prompt(1, 20, groups=((0, 12),)), prompt(2, 3)],
        [(1, 12, 0)],
        state=BY_LINE,
    ),
    Case(
        "it waits while others decode, and is owed",
        [prompt(1, 20, groups=((0, 12),)), decoder(2), prompt(3, 3)],
        [(2, 1, 1), (3, 3, 1)],
        owed=1,
    ),
    Case(
        "then the step is its own",
        [prompt(1, 20, groups=((0, 12),)), decoder(2), prompt(3, 3)],
        [(1, 12, 0)],
        state=SchedulerState((1, 2, 3), 1),
    ),
    Case("only as large as the group", [prompt(1, 20, groups=((0, 12), (12, 14)))], [(1, 12, 0)]),
    Case(
        "groups count as begin does",
        [prompt(1, 10, groups=((0, 5), (5, 14)), begin=5)],
        [(1, 9, 0)],
    ),
    # -- bounded prompts --
    Case(
        "prompt_tokens while others decode",
        [prompt(1, 50), prompt(2, 50), decoder(3)],
        [(3, 1, 1), (1, 3, 0)],
        limits=ROOMY._replace(prompt_tokens=3),
    ),
    Case("not otherwise", [prompt(1, 50)], [(1, 8, 0)], limits=ROOMY._replace(prompt_tokens=3)),
    Case(
        "a group may exceed it",
        [prompt(1, 50, groups=((0, 6),)), decoder(3)],
        [(3, 1, 1), (1, 6, 0)],
        limits=ROOMY._replace(prompt_tokens=3),
    ),
    # -- cells --
    Case(
        "too few cells: the most senior decode",
        [decoder(1), decoder(2), decoder(3, priority=1)],
        [(3, 1, 1), (1, 1, 1)],
        limits=ROOMY._replace(free_cells=2),
        state=SchedulerState((2, 1, 3)),
        starved=(2,),
        short=1,
    ),
    Case(
        "prompts take what decoding leaves",
        [prompt(1, 50), decoder(2)],
        [(2, 1, 1), (1, 3, 0)],
        limits=ROOMY._replace(free_cells=4),
        short=4,
    ),
    Case(
        "and leave headroom",
        [prompt(1, 50), decoder(2)],
        [(2, 1, 1), (1, 1, 0)],
        limits=ROOMY._replace(free_cells=4, headroom=2),
        short=6,
    ),
    Case("none without decoding", [prompt(1, 4)], [(1, 4, 1)], limits=ROOMY._replace(free_cells=4, headroom=2)),
    Case(
        "nothing that a senior prompt still needs",
        [prompt(1, 50), prompt(2, 4)],
        [(1, 8, 0)],
        limits=ROOMY._replace(free_cells=30),
        state=SchedulerState((2, 1)),
        short=4,
    ),
    Case(
        "no cells for a group",
        [prompt(1, 20, groups=((0, 6),))],
        [],
        limits=ROOMY._replace(free_cells=5),
        short=3,
    ),
    Case(
        "nothing is set aside for what lacks cells",
        [prompt(1, 20, groups=((0, 8),)), decoder(2)],
        [(2, 1, 1)],
        limits=ROOMY._replace(free_cells=8),
        state=SchedulerState((1, 2), 1),
        short=1,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_one_step(case: Case) -> None:
    got = plan(case.candidates, case.limits, case.state)
    assert [tuple(piece) for piece in got.scheduled] == case.pieces
    assert got.state.owed == case.owed
    assert (got.starved, got.short) == (case.starved, case.short)


def test_who_was_served_goes_to_the_end() -> None:
    got = plan([prompt(1, 50), prompt(2, 50), decoder(3)], ROOMY, SchedulerState((2, 1, 3)))
    assert got.state.line == (1, 2, 3)


@pytest.mark.parametrize(
    ("candidates", "limits", "message"),
    [
        ([prompt(1, 0)], ROOMY, "has pending inputs"),
        ([prompt(1, 2), decoder(1)], ROOMY, "two have 1"),
        ([prompt(1, 4, groups=((0, 6),))], ROOMY, "the next group"),
        ([prompt(1, 6, groups=((0, 6),), rows_from=0)], ROOMY, "wants 6 rows of logits"),
        ([], ROOMY._replace(batch_size=0), "at least 1"),
        ([], ROOMY._replace(max_outputs=0), "at least 1"),
        ([], ROOMY._replace(prompt_tokens=0), "at least 1"),
        ([], ROOMY._replace(free_cells=-1), "at least 0"),
    ],
)
def test_refused(candidates: list[Candidate], limits: BatchLimits, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(candidates, limits)


@pytest.mark.parametrize(
    ("candidates", "freed", "victim"),
    [
        ([decoder(1), decoder(3), decoder(2)], {1: 9, 2: 9, 3: 9}, 3),
        ([decoder(1), decoder(3, 1), decoder(2)], {1: 9, 2: 9, 3: 9}, 2),
        ([decoder(1), prompt(3, 5), decoder(2)], {1: 9, 2: 9, 3: 0}, 2),  # it would free nothing
        ([decoder(1), decoder(2)], {1: 9}, None),  # the most senior goes on
        ([decoder(1, -1), decoder(2)], {1: 9, 2: 9}, 1),
        ([decoder(1)], {1: 9}, None),
        ([], {}, None),
    ],
)
def test_victim(candidates: list[Candidate], freed: dict[int, int], victim: int | None) -> None:
    assert choose_victim(candidates, freed) == victim


def test_callers_of_equal_prompts_get_their_first_tokens_one_after_the_other() -> None:
    """8 prompts of 10, of which a step computes 8 inputs: read in turn, all would end in the last two of ten steps."""
    rest, ended, state = dict.fromkeys(range(8), 10), [], START
    for number in range(1, 11):
        got = plan([prompt(key, n) for key, n in rest.items()], ROOMY, state)
        state = got.state
        for key, n, _ in got.scheduled:
            rest[key] -= n
            if not rest[key]:
                ended.append(number)
                del rest[key]
    assert ended == [2, 3, 4, 5, 7, 8, 10, 10]


# -- promises over many steps ------------------------------------------------------------------------------------------

limits_of = st.builds(
    BatchLimits,
    batch_size=st.integers(1, 12),
    max_outputs=st.integers(5, 12),
    free_cells=st.just(10**6),
    prompt_tokens=st.none() | st.integers(1, 12),
    headroom=st.integers(0, 3),
    groups=st.none() | st.integers(1, 3),
)


@st.composite
def candidate_of(draw: st.DrawFn, key: int) -> Candidate:
    priority = draw(st.sampled_from([0, 0, 0, 1, 2]))
    if draw(st.booleans()):
        return decoder(key, priority, draw(st.sampled_from([0, 0, 0, 1, 7])))
    n = draw(st.integers(1, 60))
    sizes = draw(st.lists(st.integers(1, 5) | st.just(20), max_size=6))
    rows_from = draw(st.none() | st.integers(0, n - 1))
    groups, at = [], draw(st.integers(0, 5))
    for size in sizes:
        if rows_from is not None and size > 5:
            continue
        if at + size > n:
            break
        if size > 1:
            groups.append((at, at + size))
        at += size + draw(st.integers(0, 3))
    return prompt(key, n, priority, tuple(groups), rows_from=rows_from)


def candidates_of(most: int) -> st.SearchStrategy[list[Candidate]]:
    return st.integers(0, most).flatmap(lambda n: st.tuples(*(candidate_of(key) for key in range(n)))).map(list)


def check_step(candidates: list[Candidate], limits: BatchLimits, got: StepPlan) -> None:
    """What holds for every plan."""
    by_key = {candidate.key: candidate for candidate in candidates}
    keys = [piece.key for piece in got.scheduled]
    assert len(set(keys)) == len(keys)
    assert set(keys) <= set(by_key)
    assert sorted(got.state.line) == sorted(by_key)
    n_tokens = sum(piece.n for piece in got.scheduled)
    assert n_tokens <= limits.free_cells
    assert sum(piece.outputs for piece in got.scheduled) <= limits.max_outputs
    for piece in got.scheduled:
        candidate = by_key[piece.key]
        end = candidate.begin + piece.n
        assert piece.n > 0
        assert end <= candidate.end
        assert ceil_cut(end, candidate.groups) == end, "a group was split"
        first = candidate.end - 1 if candidate.rows_from is None else candidate.rows_from
        rows = [at for at in range(candidate.begin, end) if candidate.decoding or at >= first]
        assert piece.outputs == len(rows)
    if limits.groups is not None:
        groups = [begin for piece in got.scheduled for begin, _ in by_key[piece.key].groups
                  if by_key[piece.key].begin <= begin < by_key[piece.key].begin + piece.n]  # fmt: skip
        assert len(groups) <= limits.groups, "no more groups than may share a batch"
    if n_tokens > limits.batch_size:
        assert len(got.scheduled) == 1, "only alone may a group exceed the batch"
        candidate, piece = by_key[keys[0]], got.scheduled[0]
        assert (candidate.begin, candidate.begin + piece.n) in candidate.groups
    decoding = [candidate.key for candidate in candidates if candidate.decoding]
    assert keys[: len(set(keys) & set(decoding))] == [key for key in keys if key in decoding], "decoding comes first"
    assert set(got.starved) <= set(decoding) - set(keys)


@given(candidates_of(8), limits_of, st.integers(0, 40))
def test_any_step(candidates: list[Candidate], limits: BatchLimits, free_cells: int) -> None:
    limits = limits._replace(free_cells=free_cells)
    got = plan(candidates, limits)
    check_step(candidates, limits, got)
    assert plan(candidates[::-1], limits) == got, "the order of the candidates does not matter"
    unlimited = plan(candidates, limits._replace(free_cells=10**6))
    if not got.short:
        assert got == unlimited, "0 short: cells limit nothing"
    assert (unlimited.short, unlimited.starved) == (0, ())
    # The most senior of all is never the one to wait for a cell, if there is one and it can use it.
    if got.starved:
        senior = min(candidates, key=lambda candidate: (-candidate.priority, candidate.key))
        assert senior.key not in got.starved or free_cells == 0


@settings(max_examples=scaled(100, quick=25))
@given(candidates_of(7), limits_of, st.data())
def test_nobody_starves(candidates: list[Candidate], limits: BatchLimits, data: st.DataObject) -> None:
    """While newcomers of any priority keep coming, each is served within 10 * (N + 1) steps."""
    running = {candidate.key: candidate for candidate in candidates}
    waited = dict.fromkeys(running, 0)
    state, next_key = SchedulerState(), len(running)
    arrivals = data.draw(st.lists(st.integers(0, 12), max_size=60))
    for arrival in [*arrivals, *[12] * 120]:
        if arrival < 8 and len(running) < 8:
            running[next_key] = data.draw(candidate_of(next_key))
            waited[next_key] = 0
            next_key += 1
        got = plan(running.values(), limits, state)
        check_step(list(running.values()), limits, got)
        state = got.state
        for key, candidate in running.items():
            waited[key] += 1
            assert waited[key] <= 10 * (8 + 1), f"{candidate} starves"
        for piece in got.scheduled:
            candidate = running[piece.key]
            waited[piece.key] = 0
            if candidate.decoding:
                continue
            if candidate.begin + piece.n == candidate.end:
                del running[piece.key]
                running[next_key] = data.draw(candidate_of(next_key))
                waited[next_key] = 0
                next_key += 1
            else:
                running[piece.key] = candidate._replace(begin=candidate.begin + piece.n)


@settings(max_examples=scaled(100, quick=25))
@given(candidates_of(6), limits_of, st.integers(60, 120))
def test_a_small_pool_comes_to_an_end(candidates: list[Candidate], limits: BatchLimits, n_cells: int) -> None:
    """With preemption, and cells enough for the largest alone, everyone gets all computed; nobody is stuck."""
    limits = limits._replace(headroom=0)
    running = {
        candidate.key: candidate._replace(begin=0, end=11, decoding=False) if candidate.decoding else candidate
        for candidate in candidates
    }
    held = dict.fromkeys(running, 0)
    state = SchedulerState()
    for _ in range(2000):
        if not running:
            return
        free = n_cells - sum(held.values())
        got = plan(running.values(), limits._replace(free_cells=free), state)
        check_step(list(running.values()), limits._replace(free_cells=free), got)
        if not got.scheduled:
            victim = choose_victim(running.values(), held)
            assert victim is not None, "nothing goes on and nobody can be preempted"
            assert got.short > 0
            running[victim] = running[victim]._replace(begin=0)
            held[victim] = 0
            continue
        state = got.state
        for piece in got.scheduled:
            candidate = running[piece.key]
            held[piece.key] += piece.n
            running[piece.key] = candidate._replace(begin=candidate.begin + piece.n)
            if running[piece.key].begin == candidate.end:
                del running[piece.key], held[piece.key]
    pytest.fail("some never came to their end")
