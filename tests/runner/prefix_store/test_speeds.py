"""How fast blocks are read, where several are read side by side."""

from __future__ import annotations

from ollama_engine.runner.prefix_store.speeds import SharedSpeed


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_reads_side_by_side_share_a_disk() -> None:
    """A disk of 100 bytes/s reads four blocks of 50 two at a time: it takes 2 s, however the reads overlap."""
    clock = Clock()
    speed = SharedSpeed(clock)
    for now, call in (
        (0.0, speed.begin), (0.0, speed.begin), (1.0, lambda: speed.end(50)), (1.0, speed.begin),
        (1.0, lambda: speed.end(50)), (1.0, speed.begin), (2.0, lambda: speed.end(50)), (2.0, lambda: speed.end(50)),
    ):  # fmt: skip
        clock.now = now
        call()
    assert speed.seconds(100) == 1.0


def test_a_read_alone_is_no_quicker_for_who_could_read_beside_it() -> None:
    clock = Clock()
    speed = SharedSpeed(clock)
    speed.begin()
    clock.now = 0.5
    speed.end(50)
    assert speed.seconds(100) == 1.0


def test_time_without_reads_does_not_count() -> None:
    clock = Clock()
    speed = SharedSpeed(clock)
    for begin in (0.0, 100.0):
        clock.now = begin
        speed.begin()
        clock.now += 1.0
        speed.end(50)
    assert speed.seconds(50) == 1.0


def test_a_failed_read_says_nothing() -> None:
    speed = SharedSpeed(Clock())
    speed.begin()
    speed.end(0)
    assert speed.seconds(100) == 0.0
