"""The planner's decisions, and what holds in any history of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from ollama_engine.config import RANGES, EngineConfig
from ollama_engine.server.model_manager.planner import Grant, ModelLimits, Need, Resident, Waiter, plan
from ollama_engine.server.model_manager.runner_options import ENGINE_NAMES, RunnerOptions
from ollama_engine.server.settings import ServerSettings
from tests.support.suite import scaled

FREE = ModelLimits(models=3, free={"CPU": 100})
SOME = ModelLimits(models=3, free={"CPU": 100}, sleepers=2)
NOW = 10.0


def resident(number: int, key: str, **facts: object) -> Resident:
    known: dict[str, object] = {"state": "ready", "options": RunnerOptions(), "expires_at": 99.0,
                                "memory": {"CPU": 10}} | facts  # fmt: skip
    return Resident(number, key, **known)  # type: ignore[arg-type]


def waiter(number: int, key: str, memory: int | None = 10, **options: int) -> Waiter:
    need = None if memory is None else Need({"CPU": memory}, {"CPU": memory})
    return Waiter(number, key, RunnerOptions(**options), need)


def test_a_loaded_model_is_granted_to_all_who_fit() -> None:
    found = plan([resident(1, "a")], [waiter(7, "a"), waiter(8, "a")], FREE, NOW)
    assert found.grants == [Grant(7, 1), Grant(8, 1)]
    assert (found.load, found.unload) == (None, [])


def test_a_model_that_is_not_there_is_measured_then_loaded() -> None:
    assert plan([], [waiter(1, "a", memory=None)], FREE, NOW).measure == 1
    assert plan([], [waiter(1, "a")], FREE, NOW).load == 1


def test_loads_come_one_after_another_and_in_order() -> None:
    assert plan([], [waiter(1, "a"), waiter(2, "b")], FREE, NOW).load == 1
    loading = resident(1, "a", state="loading")
    found = plan([loading], [waiter(1, "a"), waiter(2, "b")], FREE, NOW)
    assert (found.load, found.grants) == (None, [])


def test_a_loaded_model_answers_while_another_is_loaded() -> None:
    found = plan([resident(1, "a"), resident(2, "b", state="loading")], [waiter(1, "b"), waiter(2, "a")], FREE, NOW)
    assert found.grants == [Grant(2, 1)]


def test_the_least_recently_used_idle_model_makes_room() -> None:
    there = [resident(1, "a", last_used=3), resident(2, "b", last_used=1, holds=1), resident(3, "c", last_used=2)]
    found = plan(there, [waiter(1, "d")], FREE, NOW)
    assert (found.unload, found.load) == ([3], None)


def test_where_all_are_in_use_the_least_recently_used_one_takes_no_more_requests() -> None:
    there = [resident(n, key, holds=1, last_used=n) for n, key in ((1, "a"), (2, "b"), (3, "c"))]
    found = plan(there, [waiter(1, "d"), waiter(2, "a"), waiter(3, "b")], FREE, NOW)
    assert (found.unload, found.load, found.grants) == ([], None, [Grant(3, 2)])


def test_memory_decides_how_many_leave() -> None:
    there = [resident(n, key, last_used=n, memory={"CPU": size}) for n, key, size in ((1, "a", 10), (2, "b", 60))]
    tight = ModelLimits(models=9, free={"CPU": 5})
    assert plan(there, [waiter(1, "c", memory=5)], tight, NOW).load == 1
    assert plan(there, [waiter(1, "c", memory=15)], tight, NOW).unload == [1]
    assert plan(there, [waiter(1, "c", memory=65)], tight, NOW).unload == [2]  # the small one alone is not enough
    assert plan(there, [waiter(1, "c", memory=75)], tight, NOW).unload == [1, 2]


def test_memory_of_other_machines_counts_as_it_was_measured() -> None:
    memory = {"CPU": 1, "rpc://a:1": 60}
    there = [resident(n, key, memory=memory, last_used=n) for n, key in ((1, "a"), (2, "b"))]
    for room, unload in ((180, []), (179, [1]), (100, [1, 2])):
        need = Need(memory, memory, room={"rpc://a:1": room})
        found = plan(there, [Waiter(1, "c", RunnerOptions(), need)], FREE, NOW)
        assert (sorted(found.unload), found.load) == (unload, None if unload else 1)


def test_a_model_that_never_fits_costs_nobody_a_model() -> None:
    there = [resident(1, "a"), resident(2, "b")]
    found = plan(there, [waiter(1, "c", memory=1000)], ModelLimits(models=3, free={"CPU": 5}), NOW)
    assert (found.unload, found.load) == ([], 1)  # loading it says what is missing


def test_a_model_that_needs_the_machine_alone_waits_until_all_others_have_left() -> None:
    alone = replace(waiter(1, "c"), need=Need({"CPU": 1}, {"CPU": 1}, alone=True))
    there = [resident(1, "a"), resident(2, "b", holds=1)]
    assert plan(there, [alone], FREE, NOW).unload == [1]
    assert plan([there[1]], [alone], FREE, NOW).load is None
    assert plan([], [alone], FREE, NOW).load == 1


def test_other_options_reload_once_the_requests_have_ended() -> None:
    there = resident(1, "a", options=RunnerOptions(num_ctx=100), context_length=2000)
    assert plan([there], [waiter(1, "a", num_ctx=200)], FREE, NOW).unload == [1]
    found = plan([replace(there, holds=1)], [waiter(1, "a", num_ctx=200), waiter(2, "a")], FREE, NOW)
    assert (found.unload, found.grants) == ([], [])  # whoever comes later waits as well, or they would never end


@pytest.mark.parametrize(
    ("given", "loaded", "fits"),
    [
        ({}, {"num_ctx": 100, "num_gpu": 3}, True),
        ({"num_ctx": 100}, {"num_ctx": 100, "num_batch": 64}, True),
        ({"num_ctx": 100}, {}, False),
        ({"num_ctx": 5000}, {"num_ctx": 9000}, True),  # the model was trained for 2000
        ({"num_gpu": -1, "num_thread": 0}, {"num_gpu": 3, "num_thread": 2}, True),
        ({"num_thread": 1}, {"num_thread": 2}, False),
        ({"use_mmap": False}, {"use_mmap": True}, False),
        ({"temperature": 0.1, "stop": ["x"]}, {}, True),
    ],
)
def test_only_options_that_are_given_are_compared(
    given: dict[str, object], loaded: dict[str, object], fits: bool
) -> None:
    assert RunnerOptions.of(given).fits(RunnerOptions.of(loaded), 2000) is fits


def test_idle_models_leave_when_their_time_is_over() -> None:
    there = [resident(1, "a", expires_at=NOW), resident(2, "b", expires_at=NOW, holds=1), resident(3, "c")]
    assert plan(there, [], FREE, NOW).unload == [1]
    assert plan(there, [waiter(1, "a")], FREE, NOW).unload == []


def asleep(number: int, key: str, **facts: object) -> Resident:
    return resident(number, key, state="sleeping", may_sleep=True, **facts)


def test_models_that_leave_sleep_where_they_may() -> None:
    idle = resident(1, "a", may_sleep=True, expires_at=NOW)
    found = plan([idle, resident(2, "b", expires_at=NOW)], [], SOME, NOW)
    assert (found.sleep, found.unload) == ([1], [2])
    tight = replace(SOME, models=1)
    assert plan([replace(idle, expires_at=99.0)], [waiter(7, "b")], tight, NOW).sleep == [1]
    found = plan([idle], [waiter(7, "a", num_ctx=200)], SOME, NOW)
    assert (found.sleep, found.unload) == ([], [1]), "with other options nothing of it can be used again"


def test_a_sleeping_model_takes_no_place_and_wakes_up_for_a_request() -> None:
    tight = replace(SOME, models=1, free={"CPU": 10})
    assert plan([asleep(1, "a")], [waiter(7, "b")], tight, NOW).load == 7
    found = plan([asleep(1, "a")], [waiter(7, "a", memory=None)], tight, NOW)
    assert (found.wake, found.load, found.measure, found.grants) == (1, None, None, [])
    there = [asleep(1, "a"), resident(2, "b", may_sleep=True)]
    found = plan(there, [waiter(7, "a", memory=None)], tight, NOW)
    assert (found.wake, found.sleep) == (None, [2]), "another makes room first"
    found = plan([asleep(1, "a"), resident(2, "b", state="waking")], [waiter(7, "a")], SOME, NOW)
    assert found.wake is None, "one after the other"
    assert plan([asleep(1, "a")], [waiter(7, "a", num_ctx=200)], SOME, NOW).unload == [1]


def test_those_that_sleep_too_long_or_are_too_many_are_closed() -> None:
    there = [asleep(n, key, last_used=n) for n, key in ((3, "c"), (1, "a"), (2, "b"))]
    assert plan(there, [], SOME, NOW).unload == [1]
    assert plan(there, [waiter(7, "a")], SOME, NOW).wake == 1, "not the one that is asked for"
    assert plan([asleep(1, "a", expires_at=NOW)], [], SOME, NOW).unload == [1]
    found = plan([asleep(1, "a", expires_at=NOW), resident(2, "b", state="loading")], [waiter(7, "a")], SOME, NOW)
    assert (found.unload, found.wake) == ([1], None), "stopped, or out of time: nobody may wait for it to be over"
    alone = replace(waiter(7, "d"), need=Need({"CPU": 1}, {"CPU": 1}, alone=True))
    assert plan(there[:2], [alone], SOME, NOW).unload == [3, 1]


@dataclass
class World:
    """Residents and waiters that do what the planner says, with random endings of loads, unloads and requests."""

    rng: random.Random
    models: int
    size: int
    sizes: dict[str, int]
    now: float = 0.0
    number: int = 0
    residents: dict[int, Resident] = field(default_factory=dict)
    waiters: dict[int, Waiter] = field(default_factory=dict)

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def arrive(self) -> None:
        key = self.rng.choice(sorted(self.sizes))
        number = self.next_number()
        options = RunnerOptions(num_ctx=self.rng.choice([None, None, 100, 200]))
        self.waiters[number] = Waiter(number, key, options)

    def free(self) -> dict[str, int]:
        return {"CPU": self.size - sum(r.memory["CPU"] for r in self.awake())}

    def awake(self) -> list[Resident]:
        return [there for there in self.residents.values() if there.state != "sleeping"]

    def change(self) -> None:
        """Something ends: a load, an unload, a request; or a waiting caller goes away."""
        found = self.rng.choice(sorted(self.residents)) if self.residents else None
        if found is None or self.rng.random() < 0.1:
            if self.waiters and self.rng.random() < 0.2:
                del self.waiters[self.rng.choice(sorted(self.waiters))]
            return
        there = self.residents[found]
        if there.state == "unloading" or (there.state == "loading" and self.rng.random() < 0.2):  # or it fails
            del self.residents[found]
        elif there.state == "loading":
            self.residents[found] = replace(there, state="ready", expires_at=self.now + self.rng.choice([0, 5, 1e9]))
        elif there.state in ("falling asleep", "waking"):
            if self.rng.random() < 0.2:  # it cannot, and is closed
                self.residents[found] = replace(there, state="unloading")
            else:
                state = "ready" if there.state == "waking" else "sleeping"
                self.residents[found] = replace(there, state=state, expires_at=self.now + 5)  # type: ignore[arg-type]
        elif there.holds:
            self.residents[found] = replace(there, holds=there.holds - 1, last_used=self.now, expires_at=self.now + 5)

    def advance(self) -> None:
        limits = ModelLimits(self.models, self.free(), sleepers=2)
        found = plan(list(self.residents.values()), list(self.waiters.values()), limits, self.now)
        for grant in found.grants:
            waiting, there = self.waiters.pop(grant.waiter), self.residents[grant.resident]
            assert there.state == "ready"
            assert waiting.key == there.key
            assert waiting.options.fits(there.options)
            self.residents[grant.resident] = replace(there, holds=there.holds + 1, last_used=self.now)
        for number in (*found.unload, *found.sleep):
            there = self.residents[number]
            assert there.state == "ready" or (there.state == "sleeping" and number in found.unload)
            assert there.holds == 0, "a model in use is never unloaded"
            assert there.may_sleep or number in found.unload
            self.residents[number] = replace(there, state="unloading" if number in found.unload else "falling asleep")
        if found.wake is not None:
            self.take_memory(self.residents[found.wake].memory["CPU"])
            self.residents[found.wake] = replace(self.residents[found.wake], state="waking")
        if found.measure is not None:
            waiting = self.waiters[found.measure]
            nbytes = {"CPU": self.sizes[waiting.key]}
            self.waiters[found.measure] = replace(waiting, need=Need(nbytes, nbytes))
        if found.load is not None:
            self.load(self.waiters[found.load])

    def load(self, waiting: Waiter) -> None:
        assert waiting.need is not None
        assert all(there.key != waiting.key for there in self.residents.values()), "never two loads of one model"
        self.take_memory(waiting.need.memory["CPU"])
        number = self.next_number()
        self.residents[number] = Resident(number, waiting.key, "loading", waiting.options, memory=waiting.need.memory,
                                          may_sleep=self.rng.random() < 0.7)  # fmt: skip

    def take_memory(self, nbytes: int) -> None:
        assert all(there.state == "ready" for there in self.awake()), "one load at a time"
        assert nbytes <= self.free()["CPU"] or not self.awake() or nbytes > self.size
        assert len(self.awake()) < self.models


@pytest.mark.parametrize("seed", range(scaled(80, quick=12)))
def test_any_history_keeps_the_rules_and_serves_everybody(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {key: rng.choice([10, 30, 60]) for key in "abcde"[: rng.randint(1, 5)]}
    world = World(rng, models=rng.randint(1, 4), size=100, sizes=sizes)
    for _ in range(150):
        world.now += rng.random()
        if rng.random() < 0.3:
            world.arrive()
        else:
            world.change()
        world.advance()
    left = sorted(world.waiters)
    for _ in range(5000):  # nobody comes any more: everything ends, and all get their model
        world.now += rng.random()
        world.change()
        world.advance()
    assert not world.waiters, left


def test_a_stream_of_requests_for_one_model_does_not_keep_others_out() -> None:
    world = World(random.Random(1), models=1, size=100, sizes={"a": 10})
    for number in range(3):
        world.waiters[number] = waiter(number, "a")
    world.number = 100
    for step in range(400):
        world.now += 1
        world.advance()
        there = list(world.residents.values())
        if any(r.key == "b" and r.holds for r in there):
            return
        for r in there:
            if r.state in ("loading", "waking"):
                world.residents[r.number] = replace(r, state="ready", expires_at=1e9)
            elif r.state == "falling asleep":
                world.residents[r.number] = replace(r, state="sleeping", expires_at=1e9)
            elif r.state == "unloading":
                del world.residents[r.number]
            elif r.holds:
                world.residents[r.number] = replace(r, holds=r.holds - 1)
        for key in "ab" if step == 5 else "a":
            number = world.next_number()
            world.waiters[number] = waiter(number, key)
    pytest.fail("the request for b was never served")


@pytest.mark.parametrize("name", ["num_ctx", "num_batch", "num_thread"])
def test_larger_values_than_the_engine_takes_are_its_largest(name: str) -> None:
    """A load that fails for its options would have unloaded the model that ran before."""
    options = RunnerOptions.of({name: 10**9}).engine_options(ServerSettings(), has_gpu=False)
    name = ENGINE_NAMES[name]
    assert getattr(EngineConfig(**{name: options[name]}), name) == RANGES[name][1]
