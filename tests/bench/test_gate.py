"""bench/gate: which rows are measured again, what counts, and what fails; the committed floors and targets."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from bench.calibration import calibrate, unit
from bench.gate import __main__ as program
from bench.gate import attention, host, known_losses, model
from bench.gate.known_losses import known_loss
from bench.gate.verdict import ATTEMPTS, COPY, OURS, READ, Group, Measured, Verdict, judge, line, summary
from bench.rows import Row
from bench.targets import FLOORS, TARGETS, Target, floor

ROOT = Path(__file__).resolve().parents[2]
FLOOR = 0.9


def sides(ours: float, ggml: float = 1.0) -> Measured:
    return Measured({OURS: ours, "ggml": ggml})


class Machine:
    """Rows that take, in each attempt, what is said; the last again and again."""

    def __init__(self, **rows: list[Measured]) -> None:
        self.rows = rows
        self.asked: list[list[str]] = []

    def group(self, title: str = "g") -> Group:
        return Group(title, dict.fromkeys(self.rows, FLOOR), self.measure)

    def measure(self, names: Collection[str]) -> Iterator[tuple[str, Measured]]:
        self.asked.append(list(names))
        for name in names:
            times = self.rows[name]
            yield name, times.pop(0) if len(times) > 1 else times[0]


def judged(machine: Machine) -> dict[str, Verdict]:
    return {verdict.name: verdict for verdict in judge([machine.group()], lambda verdict: None)}


def test_what_keeps_its_floor_is_measured_once() -> None:
    machine = Machine(a=[sides(1.0)], b=[sides(1.1)])
    assert [verdict.missed for verdict in judged(machine).values()] == [False, False]
    assert machine.asked == [["a", "b"]]


def test_what_misses_is_measured_again_so_often() -> None:
    machine = Machine(a=[sides(1.0)], b=[sides(2.0), sides(1.5), sides(1.05)], c=[sides(2.0)])
    found = judged(machine)
    assert machine.asked == [["a", "b", "c"], ["b", "c"], ["b", "c"], ["c"]]
    assert len(machine.asked) == ATTEMPTS
    assert (found["b"].missed, found["b"].attempts) == (False, 3)
    assert (found["c"].missed, found["c"].attempts) == (True, ATTEMPTS)


def test_the_fastest_of_all_attempts_counts_for_both_sides() -> None:
    """A neighbour that slows ggml down in the second attempt does not make ours fast enough."""
    found = judged(Machine(a=[sides(2.0), sides(2.0, ggml=3.0)]))
    assert found["a"].ratio == 0.5
    assert found["a"].missed


def test_a_plain_read_is_no_competitor_and_a_row_without_a_time_misses() -> None:
    assert Measured({OURS: 2.0, "ggml": 2.5, READ: 1.0}).ratio == 1.25
    assert Verdict("a", FLOOR, sides(float("nan"))).missed


def test_a_row_that_is_not_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="b: asked for and not measured"):
        judge([Group("g", {"b": 1.0}, lambda names: iter(()))], lambda verdict: None)


def test_a_copy_of_the_weights_has_to_win_by_more() -> None:
    assert Measured({OURS: 2.0, "ggml": 3.0, COPY: 2.0}).ratio == 1.25
    assert Measured({OURS: 2.0, "ggml": 2.0, COPY: 2.0}).ratio == 1.0


def test_words_choose_rows() -> None:
    group = Machine(**{"q4_K, 1 row": [], "q4_K, 2 rows": [], "f16, 1 row": []}).group("from memory")
    assert list(group.only(["q4_K", "memory"]).floors) == ["q4_K, 1 row", "q4_K, 2 rows"]
    assert not group.only(["q4_K", "cache"]).floors


def test_words_for_a_reader() -> None:
    missed = Verdict("q4_K, 1 row", FLOOR, Measured({OURS: 2.0, "ggml": 1.0, READ: 0.5}, nbytes=10**10), attempts=4)
    assert line(missed) == ("MISSED   0.50 >= 0.9   q4_K, 1 row: ours 5.0 GB/s, ggml 10.0 GB/s, plain read 20.0 GB/s"
                            ", 4 attempts")  # fmt: skip
    kept = Verdict("a", 1.0, sides(1e-3, ggml=2e-3))
    assert line(kept) == "ok       2.00 >= 1     a: ours 1.00 ms, ggml 2.00 ms"
    assert summary([kept, missed]) == [line(missed), "1 of 2 rows miss their floor"]
    assert summary([kept]) == ["1 rows, no floor missed"]


def test_a_cpu_without_our_kernels_has_ggmls_on_both_sides() -> None:
    assert floor("a prompt", ours=True) == FLOORS["a prompt"] >= 1
    assert floor("a prompt", ours=False) < 1


# -- beside computing --------------------------------------------------------------------------------------------------


def test_a_row_beside_its_limit() -> None:
    rows = [Row("a", "q", "ours", 3e-3, calibration) for calibration in (1e-3, 1e-3, 9e-3)]
    rows.append(Row("b", "q", "twin", 8e-3, 1e-3))
    targets = {"a": Target(units=2.0)}
    assert dict(host.measured(targets, rows)) == {"a": Measured({OURS: 3e-3, "limit": 2e-3})}, "one disturbed loop"
    targets = {"a": Target(twin="b", times=2.0)}
    assert dict(host.measured(targets, rows)) == {"a": Measured({OURS: 3e-3, "limit": 4e-3})}
    targets = {"a": Target(units=2.0, twin="b", times=2.0), "gone": Target(units=2.0)}
    assert dict(host.measured(targets, rows)) == {"a": Measured({OURS: 3e-3, "limit": 2e-3})}, "the lesser"
    assert dict(host.measured({"a": Target(units=2.0, twin="gone")}, rows)) == {}


def test_a_unit_is_the_fastest_of_each_loop() -> None:
    assert unit((1.0, 4.0), (4.0, 1.0)) == pytest.approx(1.0)
    assert len(calibrate(1)) == 3


# -- what is committed -------------------------------------------------------------------------------------------------


def test_every_floor_is_that_of_a_row() -> None:
    used = {f"attention of {case[0]}" for case in attention.CASES.values()} | set(model.PARTS)
    products = {"product from memory", "product from cache", "product from cache, few rows", "experts from memory"}
    assert used | products | {"ggml beside itself"} == set(FLOORS)
    assert all(floor > 0 for floor in FLOORS.values())


def test_targets_are_rows_that_exist() -> None:
    """Benchmarks that are renamed take their targets with them."""
    command = [sys.executable, "-m", "pytest", "bench", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    there = set(re.findall(r"^bench/(\S+\.py::.*)$", done.stdout, flags=re.MULTILINE))
    named = {*TARGETS, *(target.twin for target in TARGETS.values() if target.twin)}
    assert named - there == set()


ZEN_4 = (
    "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nflags\t\t: fpu avx2 avx512_vnni\n\nprocessor\t: 1\n"
)


@pytest.mark.parametrize(
    ("cpuinfo", "known"),
    [
        (ZEN_4, True),
        (ZEN_4.replace(" avx512_vnni", ""), False),
        (ZEN_4.replace(": 25", ": 26"), True),
        (ZEN_4.replace(": 25", ": 24"), False),
        (ZEN_4.replace("AMD", "Intel"), False),
        ("", False),
    ],
    ids=["zen 4", "zen 3", "zen 5", "zen 1", "intel", "nothing"],
)
def test_a_known_loss_is_that_of_one_kind_of_cpu(tmp_path: Path, cpuinfo: str, known: bool) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="utf-8")
    assert bool(known_loss(tmp_path / "cpuinfo")) == known
    assert not known_loss(tmp_path / "missing")


def test_a_known_loss_is_of_some_rows_and_has_a_floor_of_its_own() -> None:
    loss = known_losses.KNOWN["AuthenticAMD 25 avx512_vnni"]
    few, many = "f16 product from memory, 1 row", "f16 product from memory, 512 rows"
    missed = [Verdict(few, FLOOR, sides(1.25)), Verdict(few, FLOOR, sides(2.0)), Verdict(many, FLOOR, sides(1.25))]
    assert known_losses.unknown(missed, loss) == missed[1:]
    assert known_losses.unknown(missed, None) == missed


def test_a_loss_that_is_not_known_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(a=[sides(2.0)])
    monkeypatch.setattr(program, "all_groups", lambda chosen: contextlib.nullcontext([machine.group()]))
    here, other = known_losses.Loss("^a$", 0.4, "slow"), known_losses.Loss("^b$", 0.4, "slow")
    for loss, options, status in (
        (None, ["--known-losses"], 1), (other, ["--known-losses"], 1), (here, ["--known-losses"], 0), (here, [], 1)
    ):  # fmt: skip
        monkeypatch.setattr(program, "known_loss", lambda loss=loss: loss)
        assert program.main(options) == status
        assert ("KNOWN LOSS" in capsys.readouterr().out) == (loss is not None and bool(options))
