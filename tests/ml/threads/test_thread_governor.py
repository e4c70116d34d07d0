"""The governor of threads: how many compute, given how long they waited for a CPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ollama_engine.ml.threads.machine_load import CpuUse
from ollama_engine.ml.threads.thread_governor import CHECK, LONGEST_PAUSE, ThreadGovernor


@dataclass
class Machine:
    """A governor on a machine of `cpus` CPUs; `others` threads of other programs always want one."""

    cpus: int
    others: float
    governor: ThreadGovernor = field(init=False)
    now: float = 100.0
    history: list[int] = field(default_factory=list)
    reports_use: bool = True

    def __post_init__(self) -> None:
        self.governor = ThreadGovernor(self.cpus, self.use)

    @property
    def share(self) -> float:
        return min(1.0, self.cpus / (self.governor.threads + self.governor.probe + self.others))

    def use(self) -> CpuUse | None:
        idle = max(0.0, self.cpus - self.others - self.governor.threads)
        return CpuUse(idle, self.others * self.share) if self.reports_use else None

    def run(self, seconds: float, window: float = 0.02) -> int:
        """Compute for a while. All threads get the same share of the CPUs."""
        end = self.now + seconds
        while self.now < end:
            mine = self.governor.threads
            got = mine * self.share
            self.now += window
            spare = 1 - self.share if self.governor.probe else None
            self.history.append(self.governor.observe(self.now, window, (mine - got) * window, spare))
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
    assert set(machine.history[50:]) == {expected}


def test_the_first_window_lowers() -> None:
    machine = Machine(2, others=8)
    assert machine.run(0.02) == 1


def test_the_own_python_code_is_no_reason_to_compute_with_fewer() -> None:
    governor = ThreadGovernor(2, lambda: CpuUse(0.0, 0.1))
    assert {governor.observe(i * 0.02, 0.02, 0.024) for i in range(200)} == {2}


@pytest.mark.parametrize("reports_use", [True, False])
@pytest.mark.parametrize("cpus", [2, 8])
def test_all_threads_are_back_a_fraction_of_a_second_after(cpus: int, *, reports_use: bool) -> None:
    machine = Machine(cpus, others=40)
    machine.reports_use = reports_use
    assert machine.run(30) == 1
    machine.others = 0
    assert machine.run(3 * CHECK if reports_use else (cpus + 1) * CHECK) == cpus


@pytest.mark.parametrize("use", [None, CpuUse(0.0, 2.0)])
def test_threads_that_are_never_made_to_wait_are_all_used(use: CpuUse | None) -> None:
    """No CPU is idle, because programs of a lower priority use what this one leaves."""
    governor = ThreadGovernor(4, lambda: use)
    assert governor.begin(0, waiting=9) == 1
    for i in range(100):
        governor.observe(i * 0.02, 0.02, 0.0, 0.0 if governor.probe else None)
    assert governor.threads == 4
    assert governor.begin(4, waiting=9) == 4  # as they did well just now


@pytest.mark.parametrize("use", [None, CpuUse(0.0, 1.0)])
def test_probes_that_find_nothing_become_rare(use: CpuUse | None) -> None:
    governor = ThreadGovernor(2, lambda: use)
    probes, now = [], 0.0
    while now < 30:
        now += 0.02
        spare = 0.5 if governor.probe else None
        governor.observe(now, 0.02, 0.03 if governor.threads == 2 else 0.0, spare)
        if governor.probe:
            probes.append(now)
    assert probes[0] < 3 * CHECK
    assert LONGEST_PAUSE <= probes[-1] - probes[-2] < LONGEST_PAUSE + 2 * CHECK


def test_nothing_changes_while_a_probe_runs() -> None:
    governor = ThreadGovernor(2, lambda: CpuUse(0.0, 1.0))
    governor.observe(1, 0.02, 0.03)
    governor.observe(2, 0.02, 0.0)
    assert (governor.threads, governor.probe) == (1, 1)
    governor.observe(2.02, 0.02, 0.0)
    assert (governor.threads, governor.probe) == (1, 1)
    governor.observe(2.04, 0.02, 0.0, 0.01)
    assert (governor.threads, governor.probe) == (2, 0)


def test_a_probe_that_takes_the_cpu_of_the_computing_thread_has_failed() -> None:
    governor = ThreadGovernor(2, lambda: CpuUse(0.0, 1.0))
    governor.observe(1, 0.02, 0.03)
    governor.observe(2, 0.02, 0.0)
    governor.observe(2.02, 0.02, 0.01, 0.0)
    assert governor.threads == 1


@pytest.mark.parametrize(("waiting", "expected"), [(None, 2), (-1, 2), (1, 2), (2, 1), (9, 1)])
def test_a_crowd_at_the_begin_leaves_one_thread(waiting: int | None, expected: int) -> None:
    assert ThreadGovernor(2, lambda: CpuUse(0.0, 2.0)).begin(0, waiting) == expected


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


# Windows of 2 threads on 2 CPUs as they were recorded: seconds of computing, seconds of waiting. SmolLM2 135M on a
# machine with little else to do, and SmolLM2 and the demo at the moment when 1 or 8 processes came.
QUIET = [(0.0262, 0.0023), (0.0238, 0.0019), (0.0216, 0.0024), (0.021, 0.0028), (0.0265, 0.0043), (0.0205, 0.0073)]
OTHERS_CAME = [(3.2118, 3.6004), (0.4379, 0.5183), (1.8502, 1.9361)]


def test_recorded_windows() -> None:
    for computed, waited in OTHERS_CAME:
        governor = ThreadGovernor(2, lambda: CpuUse(0.0, 1.1))
        for i, quiet in enumerate(QUIET):
            assert governor.observe(i * 0.03, *quiet) == 2
        assert governor.observe(len(QUIET) * 0.03 + computed, computed, waited) == 1
