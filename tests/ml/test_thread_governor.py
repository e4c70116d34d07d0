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


@pytest.mark.parametrize(("cpus", "others", "expected"), [(2, 8, 1), (2, 2, 1), (2, 1, 1), (8, 1, 7), (8, 4, 4), (8, 99, 1)])
def test_a_busy_machine_leaves_cpus_to_others(cpus: int, others: int, expected: int) -> None:
    machine = Machine(cpus, others)
    assert machine.run(2) == expected


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


def test_nothing_is_tried_where_no_cpu_is_idle() -> None:
    machine = Machine(2, others=1)
    machine.run(20)
    assert machine.history.count(2) == 0


def test_tries_that_fail_become_rare() -> None:
    """The system says that a CPU is idle, and still the threads wait: another program wakes when they do."""
    idle = iter([1.0] * 10_000)
    governor = ThreadGovernor(2, lambda: next(idle))
    tried, now = [], 0.0
    while now < 60:
        now += 0.02
        before = governor.threads
        if governor.observe(now, 0.02, 0.03 if before == 2 else 0.0) > before:
            tried.append(now)
    assert len(tried) < 30
    assert tried[-1] - tried[-2] >= LONGEST_PAUSE


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
