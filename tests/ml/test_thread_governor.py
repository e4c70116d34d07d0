"""The governor of threads: how many compute, given how long they waited for a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ollama_engine.ml.thread_governor import CHECK, LONGEST_PAUSE, ThreadGovernor


@dataclass
class Machine:
    """A governor on a machine of `cpus` CPUs; `others` threads of other programs always want one."""

    cpus: int
    others: float
    governor: ThreadGovernor = field(init=False)
    now: float = 100.0
    history: list[int] = field(default_factory=list)
    reports_idle: bool = True

    def __post_init__(self) -> None:
        self.governor = ThreadGovernor(self.cpus, self.idle)

    def idle(self) -> float | None:
        return max(0.0, self.cpus - self.others - self.governor.threads) if self.reports_idle else None

    def run(self, seconds: float, window: float = 0.02) -> int:
        """Compute for a while. All threads get the same share of the CPUs."""
        end = self.now + seconds
        while self.now < end:
            mine = self.governor.threads
            got = mine * min(1.0, self.cpus / (mine + self.others))
            self.now += window
            self.history.append(self.governor.observe(self.now, window, (mine - got) * window))
        return self.history[-1]


@pytest.mark.parametrize("cpus", [1, 2, 8, 64])
def test_a_quiet_machine_keeps_all_its_threads(cpus: int) -> None:
    machine = Machine(cpus, others=0)
    machine.run(5)
    assert set(machine.history) == {cpus}


@pytest.mark.parametrize(
    ("cpus", "others", "expected"), [(2, 8, 1), (2, 2, 1), (2, 1, 1), (8, 1, 7), (8, 4, 4), (8, 99, 1)]
)
def test_a_busy_machine_leaves_cpus_to_others(cpus: int, others: int, expected: int) -> None:
    machine = Machine(cpus, others)
    machine.run(60)
    assert machine.history.count(expected) >= 0.95 * len(machine.history)


def test_the_first_window_lowers() -> None:
    machine = Machine(2, others=8)
    assert machine.run(0.02) == 1


@pytest.mark.parametrize("reports_idle", [True, False])
@pytest.mark.parametrize("cpus", [2, 8])
def test_all_threads_are_back_a_fraction_of_a_second_after(cpus: int, *, reports_idle: bool) -> None:
    machine = Machine(cpus, others=40)
    machine.reports_idle = reports_idle
    assert machine.run(30) == 1
    machine.others = 0
    assert machine.run(3 * CHECK if reports_idle else (cpus + 1) * CHECK) == cpus


@pytest.mark.parametrize("idle", [None, 0.0])
def test_threads_that_are_never_made_to_wait_are_all_used(idle: float | None) -> None:
    """No CPU is idle, because programs of a lower priority use what this one leaves."""
    governor = ThreadGovernor(4, lambda: idle)
    assert governor.begin(0, waiting=9) == 1
    for i in range(100):
        governor.observe(i * 0.02, 0.02, 0.0)
    assert governor.threads == 4
    assert governor.begin(4, waiting=9) == 4  # as they did well just now


@pytest.mark.parametrize(("idle", "pause"), [(None, LONGEST_PAUSE), (0.0, LONGEST_PAUSE), (1.0, 4 * CHECK)])
def test_tries_that_fail_become_rare(idle: float | None, pause: float) -> None:
    governor = ThreadGovernor(2, lambda: idle)
    tried, now = [], 0.0
    while now < 60:
        now += 0.02
        before = governor.threads
        if governor.observe(now, 0.02, 0.03 if before == 2 else 0.0) > before:
            tried.append(now)
    assert tried[1] - tried[0] < 3 * CHECK
    assert pause <= tried[-1] - tried[-2] < pause + 2 * CHECK


@pytest.mark.parametrize(("waiting", "expected"), [(None, 2), (-1, 2), (1, 2), (2, 1), (9, 1)])
def test_a_crowd_at_the_begin_leaves_one_thread(waiting: int | None, expected: int) -> None:
    assert ThreadGovernor(2, lambda: 0.0).begin(0, waiting) == expected


def test_idle_cpus_at_the_begin_bring_all_threads_back() -> None:
    machine = Machine(8, others=40)
    assert machine.run(3) == 1
    assert machine.governor.begin(machine.now + 1, waiting=-6) == 1
    assert machine.governor.begin(machine.now + 2, waiting=-7) == 8


def test_a_short_burst_of_other_work_is_forgotten() -> None:
    machine = Machine(2, others=0)
    machine.run(1)
    machine.others = 8
    assert machine.run(0.06) == 1
    machine.others = 0
    assert machine.run(3 * CHECK) == 2


# Windows of 2 threads on 2 CPUs, as they were recorded: seconds of computing, seconds of waiting.
QUIET = [(0.0201, 0.0003), (0.0208, 0.0), (0.0203, 0.0021), (0.0211, 0.0001), (0.0206, 0.0066)]
EIGHT_BURNERS = [(0.3137, 0.4911)]


def test_recorded_windows() -> None:
    governor = ThreadGovernor(2, lambda: 0.0)
    for i, (computed, waited) in enumerate(QUIET):
        assert governor.observe(i * 0.02, computed, waited) == 2
    for computed, waited in EIGHT_BURNERS:
        assert governor.observe(1, computed, waited) == 1
