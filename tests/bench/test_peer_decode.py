"""bench/peer_decode.py: engines that decode in turn. Children here answer without computing."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from bench import peer_decode
from bench.peer_decode import OURS, Ask, measure, ratio, report

CHILD = """
import sys
turns = 0
for line in sys.stdin:
    turns += 1
    print([int(line) / {speed}, 1 if turns in {busy} else 2], flush=True)
"""


def child(speed: float, busy: tuple[int, ...] = ()) -> list[str]:
    """A program that always decodes `speed` tokens/s, with one thread in the turns `busy` (the first one warms up)."""
    return [sys.executable, "-c", CHILD.format(speed=speed, busy=busy)]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    commands = {OURS: child(50), "llama.cpp": child(40)}
    monkeypatch.setattr(peer_decode, "COMMANDS", {name: lambda *_, n=name: commands[n] for name in commands})
    return commands


def test_each_round_has_every_engine(engines: dict[str, list[str]]) -> None:
    speeds = measure("model.gguf", list(engines), Ask(seconds=0.1, threads=2, rounds=5))
    assert speeds == {OURS: [50] * 5, "llama.cpp": [40] * 5}


def test_rounds_in_which_ours_gave_way_are_left_out_and_said(
    engines: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    engines[OURS] = child(50, busy=(3, 4))
    speeds = measure("model.gguf", list(engines), Ask(seconds=0.1, threads=2, rounds=5))
    assert [len(rounds) for rounds in speeds.values()] == [3, 3]
    assert "2 rounds left out, in which ours gave way" in capsys.readouterr().err


def test_a_machine_that_is_always_busy_compares_nothing(engines: dict[str, list[str]]) -> None:
    engines[OURS] = child(50, busy=tuple(range(10)))
    with pytest.raises(RuntimeError, match="busy in every round"):
        measure("model.gguf", list(engines), Ask(seconds=0.1, threads=2, rounds=2))


@pytest.mark.parametrize("before_it_is_asked", [False, True])
def test_an_engine_that_ends_says_so(before_it_is_asked: bool) -> None:
    waits = "" if before_it_is_asked else "import sys; sys.stdin.readline()\n"
    engine = peer_decode.Child("ik", [sys.executable, "-c", f"{waits}raise SystemExit(3)"])
    if before_it_is_asked:
        engine._process.wait(30)
    with pytest.raises(ChildProcessError, match="ik ended with 3"):
        engine.decode(8)
    engine.close()


def test_a_model_that_is_not_measured_takes_no_other_along(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(model: str, *_: Any) -> dict[str, list[float]]:
        if model == "bad.gguf":
            raise ChildProcessError("ik ended with 3")
        return {OURS: [50.0]}

    monkeypatch.setattr(peer_decode, "measure", measured)
    results = peer_decode.compare(["bad.gguf", "good.gguf"], [OURS], Ask(seconds=0.1, threads=2, rounds=2))
    assert results == {"good.gguf": {OURS: [50.0]}}
    assert "bad.gguf: ik ended with 3" in capsys.readouterr().err


def test_without_ours_there_are_speeds_alone() -> None:
    assert report({"a.gguf": {"llama.cpp": [40.0]}}).splitlines()[-1] == "| a | 40.0 | - |"


def test_a_round_counts_by_itself() -> None:
    """Memory became twice as fast in the middle: speeds differ, ratios do not."""
    found = ratio([11, 11, 11, 22, 22, 22], [10, 10, 10, 20, 20, 20])
    assert (found.low, found.median, found.high) == pytest.approx((1.1, 1.1, 1.1))


def test_an_interval_leaves_out_what_chance_alone_makes() -> None:
    """Of 15 rounds the fourth from each end: at most 3 of 15 fair coins show heads in 1.8 % of cases, 4 in 5.9."""
    found = ratio([float(i) for i in range(15)], [1.0] * 15)
    assert (found.low, found.median, found.high) == (3, 7, 11)


def test_few_rounds_have_their_whole_range() -> None:
    found = ratio([1, 2, 3], [1, 1, 1])
    assert (found.low, found.median, found.high) == (1, 2, 3)


def test_the_table_has_a_row_for_each_file() -> None:
    table = report({"a.gguf": {OURS: [50.0] * 6, "llama.cpp": [40.0] * 6}})
    assert table.splitlines() == [
        "| file | ollama_engine | llama.cpp | over llama.cpp |",
        "| --- | ---: | ---: | ---: |",
        "| a | 50.0 | 40.0 | **1.25** (1.25 to 1.25) |",
    ]
