"""RequestQueue: requests of all kinds in one order, with one limit, one sweep and one rule that nobody starves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import patch

import pytest

from ollama_engine.errors import ClosedError, ComputeError, DeadlineError, NoMemoryError
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.request_queue import SWEEP_SECONDS
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.results import Result
from ollama_engine.runner.schedule.queued import BatchedRequest, Progress
from ollama_engine.runner.schedule.row_readers import AllRows
from ollama_engine.runner.schedule.scheduler import FAIR_EVERY
from ollama_engine.runner.schedule.scoring import Scoring
from tests.runner.fakes import Events, FakeCache, FakeExecutor


class Pieces(BatchedRequest):
    """So many parts, of which a batch takes one."""

    kind = "embedding"

    def __init__(self, batcher: Batcher, n: int, **options: Any) -> None:
        super().__init__(channel=RequestChannel(Events()), batcher=batcher, options=RequestOptions(**options))
        self.left = n

    @property
    def idle(self) -> bool:
        return not self.left or self.channel.unwanted

    def progress(self) -> Progress:
        return Progress("batches" if self.started_at else "waiting", 0, 0)


class Batcher:
    """Computes a part of the request whose turn it is, and remembers whose."""

    def __init__(self) -> None:
        self.served: list[Pieces] = []
        self.error: Exception | None = None

    def run(self, turns: Sequence[Pieces]) -> list[tuple[BatchedRequest, Result | BaseException]]:
        first = turns[0]
        self.served.append(first)
        first.started_at = 1.0
        first.last_batch = len(self.served)
        first.left -= 1
        if self.error is not None:
            return [(first, self.error)]
        return [] if first.left else [(first, Result("done"))]


class Rig:
    def __init__(self, parallel: int = 2) -> None:
        self.now = 100.0
        self.monitor = Monitor(str, lambda: self.now)
        self.executor = FakeExecutor()
        self.core = EngineCore(cast(Any, self.executor), cast(Any, FakeCache()), parallel, self.monitor, verify=True)
        self.queue = self.core.queue
        self.batcher = Batcher()

    def pieces(self, n: int = 1, **options: Any) -> Pieces:
        made = Pieces(self.batcher, n, **options)
        made.submitted_at = self.now
        self.core.add(made)
        return made

    def scoring(self, n: int = 8, **options: Any) -> Scoring:
        made = Scoring(
            channel=RequestChannel(Events()), inputs=Inputs.text(range(n)), num_ctx=n, submitted_at=self.now,
            options=RequestOptions(**options), row_reader=AllRows(n, 4),
        )  # fmt: skip
        self.core.add(made)
        return made

    def run(self) -> None:
        while self.core.busy:
            self.core.step()


def events(request: Any) -> list[Any]:
    found: list[Any] = request.channel.mailbox.all
    return found


def test_all_kinds_have_their_key_from_one_count_and_one_event_at_their_end() -> None:
    rig = Rig()
    made = [rig.pieces(), rig.scoring(), rig.pieces(2)]
    assert [request.key for request in made] == [0, 1, 2]
    assert [slot.kind for slot in rig.queue.slots()] == ["embedding", "scoring", "embedding"]
    rig.run()
    assert all(isinstance(event, Result) for request in made for event in events(request))
    assert [len(events(request)) for request in made] == [1, 1, 1]
    assert not rig.queue.slots()
    ended = rig.core.metrics()
    assert ended.requests["stop"] == 3
    assert {kind: counts["stop"] for kind, counts in ended.requests_by_kind.items()} == {
        "generation": 0, "scoring": 1, "embedding": 2,
    }  # fmt: skip


def test_a_batched_request_waits_for_no_cache_sequence() -> None:
    rig = Rig(parallel=1)
    running, waiting, texts = rig.scoring(64), rig.scoring(64), rig.pieces()
    rig.core.step()
    rig.core.step()
    assert texts.ended
    assert not running.ended
    assert not waiting.ended
    assert list(rig.queue.running.values()) == [running]


def test_the_prefix_store_knows_when_no_request_runs() -> None:
    """At once, wherever in a step the last one ends: an idle engine makes no step that could say so later."""
    rig = Rig(parallel=2)
    first, second = rig.scoring(64), rig.scoring(64)
    with patch.object(rig.queue.stored, "no_steps") as told:
        rig.core.step()
        rig.queue.end(first, ComputeError("x"))
        told.assert_not_called()
        rig.queue.end(second, ComputeError("x"))
        told.assert_called()
        told.reset_mock()
        rig.scoring(64)
        rig.core.step()
        rig.queue.give_up(ComputeError("a fault"))
        told.assert_called_once()


def test_turns_are_by_priority_and_in_turn_and_one_of_nine_is_the_oldest() -> None:
    rig = Rig()
    old, first, second = rig.pieces(3), rig.pieces(40, priority=1), rig.pieces(40, priority=1)
    rig.run()
    served = rig.batcher.served
    assert served[:4] == [first, second, first, second]
    assert [number for number, request in enumerate(served) if request is old] == [8, 17, 26]
    alike = Counter(id(request) for request in served[:60])
    assert abs(alike[id(first)] - alike[id(second)]) <= 60 // FAIR_EVERY


def test_at_most_one_batch_comes_between_two_steps() -> None:
    rig = Rig()
    rig.scoring(80)
    rig.pieces(30)
    batches = []
    while rig.core.busy:
        before = len(rig.batcher.served)
        rig.core.step()
        batches.append(len(rig.batcher.served) - before)
    assert max(batches) == 1
    assert sum(batches) == 30


def test_batches_of_lower_priority_than_what_runs_get_one_gap_of_nine() -> None:
    rig = Rig()
    urgent, texts = rig.scoring(8 * 40, priority=1), rig.pieces(30)
    steps = 0
    while not urgent.ended:
        rig.core.step()
        steps += 1
    assert steps // FAIR_EVERY - 1 <= len(rig.batcher.served) <= steps // FAIR_EVERY + 1
    assert len(rig.batcher.served) >= 3
    rig.run()
    assert texts.ended
    same = Rig()
    running, _ = same.scoring(8 * 40, priority=1), same.pieces(30, priority=1)
    while not running.ended:
        same.core.step()
    assert len(same.batcher.served) == 30


def test_a_request_that_waits_for_its_caller_keeps_nothing_busy_and_can_be_late() -> None:
    rig = Rig()
    starved, cancelled = rig.pieces(0, timeout=5.0), rig.pieces(0)
    assert not rig.core.busy
    assert rig.queue
    rig.core.step()
    assert not starved.ended
    cancelled.channel.cancelled = True
    rig.now += 2 * SWEEP_SECONDS
    rig.core.step()
    assert isinstance(events(cancelled)[0], ClosedError)
    rig.now += 5
    rig.core.step()
    assert isinstance(events(starved)[0], DeadlineError)
    assert not rig.queue
    assert rig.core.metrics().requests["deadline"] == rig.core.metrics().requests["cancelled"] == 1


def test_nothing_is_computed_for_one_that_was_cancelled() -> None:
    rig = Rig()
    made = rig.pieces(5)
    made.channel.cancelled = True
    rig.run()
    assert not rig.batcher.served


def test_an_error_of_a_batch_ends_its_request() -> None:
    rig = Rig()
    rig.batcher.error = ComputeError("told to")
    made = rig.pieces(5)
    rig.run()
    assert events(made) == [rig.batcher.error]
    assert rig.core.metrics().requests["error"] == 1


def test_requests_of_all_kinds_count_for_the_limit_and_cancelled_ones_do_not() -> None:
    rig = Rig(parallel=2)
    rig.executor.go.clear()
    made = [rig.scoring(), rig.pieces(5), rig.pieces(5)]
    for call, request in enumerate(made):
        request.call = call
    assert not rig.queue.is_full(2)
    assert rig.queue.is_full(1)
    made[1].channel.cancelled = True
    assert not rig.queue.is_full(1)


def test_who_waits_and_who_is_served() -> None:
    rig = Rig(parallel=1)
    rig.scoring(64)
    rig.scoring(64)
    texts, starved = rig.pieces(5), rig.pieces(0)
    assert rig.queue.counts() == (4, 0)
    rig.core.step()
    rig.core.step()
    assert rig.queue.counts() == (2, 2)
    assert [slot.state for slot in rig.queue.slots()] == ["prompt", "waiting", "batches", "waiting"]
    del texts, starved


def test_short_memory_of_python_ends_a_request_as_that_of_ggml() -> None:
    rig = Rig()
    texts, raised = rig.pieces(5), MemoryError()
    rig.queue.end(texts, raised)
    (told,) = events(texts)
    assert isinstance(told, NoMemoryError)
    assert "address space" in str(told)


def test_giving_up_ends_all_kinds() -> None:
    rig = Rig()
    made = [rig.scoring(64), rig.pieces(5), rig.pieces(0)]
    rig.core.step()
    error = ClosedError("the end")
    rig.core.fail_all(error)
    assert [events(request) for request in made] == [[error]] * 3
    assert not rig.queue


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_kinds_with_batchers_of_their_own_take_turns(order: tuple[int, int]) -> None:
    """As texts and images will."""
    rig, batchers = Rig(), (Batcher(), Batcher())
    for number in order:
        rig.core.add(Pieces(batchers[number], 10))
    rig.run()
    assert [len(batcher.served) for batcher in batchers] == [10, 10]
