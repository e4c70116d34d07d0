"""bench/draft_replay.py: answers given again in a time that steps are said to take, with nothing computed."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from bench.draft_replay import Replay, Replayed, parsed, replaying
from bench.draft_texts import QUESTIONS
from ollama_engine import Engine, demo
from ollama_engine.runner.observe.monitor import Monitor

REPEATING = [*range(300, 308)] * 8
DIFFERENT = [*range(300, 364)]
FREE, DEAR = {1: 1.0, 64: 1.0}, {1: 1.0, 64: 64.0}
"""Seconds by rows."""


def replay(answer: list[int], drafted: dict[int, float], *, knowing: bool = False, clients: int = 1) -> Replay:
    """Each question answered so, with drafts and without: steps without take a second."""
    replayed = Replayed(FREE, drafted)
    known = {f"questions {i}": answer for i in range(len(QUESTIONS))}
    monitor = lambda piece: Monitor(piece, replayed.clock)  # noqa: E731
    with (
        patch("ollama_engine.engine.Monitor", monitor),
        patch("bench.draft_replay.BUILDING", 0.0),
        Engine(demo.path(), threads=1, parallel=clients, num_ctx=256, draft="lookup") as engine,
    ):
        found = Replay(engine, "questions", clients, replayed, known)
        with replaying(replayed, knowing=knowing):
            found.round(1)
    return found


def test_steps_take_what_they_are_said_to_take() -> None:
    (free,), (dear,) = replay(REPEATING, FREE).ratios, replay(REPEATING, DEAR).ratios
    assert free > 4
    assert dear == pytest.approx(1, abs=0.05)
    assert replay(REPEATING, FREE).ratios == [free], "nothing is left to chance"


def test_one_who_knows_the_answer_guesses_nothing_wrong() -> None:
    guessing, knowing = replay(REPEATING, FREE), replay(REPEATING, FREE, knowing=True)
    assert knowing.counts["drafted"] == knowing.counts["accepted"] > 0
    assert knowing.ratios >= guessing.ratios


def test_what_repeats_nothing_is_not_guessed_right() -> None:
    counts = replay(DIFFERENT, FREE).counts
    assert counts["tokens"] == 4 * len(DIFFERENT)


def test_several_clients_are_answered_as_one_is() -> None:
    several = replay(REPEATING, FREE, clients=2)
    assert several.counts["tokens"] == 4 * len(REPEATING)
    assert several.ratios[0] > 2


def test_prices_are_milliseconds_by_rows() -> None:
    assert parsed(["2:7.5", "16:20"]) == {2: 0.0075, 16: 0.02}


def test_rounds_of_earlier_runs_count(tmp_path: Path) -> None:
    found = replay(REPEATING, FREE)
    (ratio,), tokens = found.ratios, found.counts["tokens"]
    found.note(tmp_path / "notes.json")
    assert found.ratios == [ratio]
    found.note(tmp_path / "notes.json")
    assert found.ratios == [ratio] * 2
    assert found.counts["tokens"] == 2 * tokens
