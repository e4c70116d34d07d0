"""Progress: a line on a terminal and nowhere else, late, not too often, and gone afterwards."""

from __future__ import annotations

import io

import pytest

from ollama_engine.cli.progress import ERASE_LINE, CountBar, LoadingBar, StatusLine, bar


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


def test_nothing_is_written_to_a_file() -> None:
    stream = io.StringIO()
    with StatusLine(stream) as line:
        line.show("working")
    assert stream.getvalue() == ""


def test_the_line_is_redrawn_and_removed() -> None:
    stream = FakeTerminal()
    with StatusLine(stream) as line:
        line.show("one")
        line.show("two" * 30)
    assert stream.getvalue() == f"{ERASE_LINE}one{ERASE_LINE}{('two' * 30)[:59]}{ERASE_LINE}"


def test_the_line_is_removed_when_work_fails() -> None:
    stream = FakeTerminal()

    def work() -> None:
        with StatusLine(stream) as line:
            line.show("one")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert stream.getvalue().endswith(ERASE_LINE)


def test_a_line_never_shown_is_not_removed() -> None:
    stream = FakeTerminal()
    with StatusLine(stream):
        pass
    assert stream.getvalue() == ""


def test_a_bar_waits_and_does_not_flicker() -> None:
    stream, clock = FakeTerminal(), Clock()
    progress = LoadingBar(StatusLine(stream), "loading", clock=clock)
    drawn = []
    for now in (0.1, 0.29, 0.31, 0.35, 0.42):
        clock.now = now
        before = len(stream.getvalue())
        progress(1 << 20, 4 << 20)
        drawn.append(len(stream.getvalue()) > before)
    assert drawn == [False, False, True, False, True]
    progress(4 << 20, 4 << 20)
    assert stream.getvalue().endswith(ERASE_LINE)


def test_a_short_load_shows_nothing() -> None:
    stream, clock = FakeTerminal(), Clock()
    progress = LoadingBar(StatusLine(stream), "loading", clock=clock)
    for done in range(5):
        clock.now += 0.05
        progress(done, 4)
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("done", "total", "width", "expected"),
    [
        (1 << 20, 4 << 20, 60, "loading  [#######.......................]   25%  1.0/4.0 MiB"),
        (3 << 30, 4 << 30, 44, "loading  [##########....]   75%  3.0/4.0 GiB"),
        (1 << 20, 4 << 20, 12, "  []   25%  1.0/4.0 MiB"),
    ],
)
def test_a_bar(done: int, total: int, width: int, expected: str) -> None:
    shown = bar("loading", done, total, width)
    assert shown == expected


@pytest.mark.parametrize(("elapsed", "expected"), [(10.0, "ETA 0:30"), (130.0, "ETA 6:30"), (2400.0, "ETA 2:00:00")])
def test_a_bar_says_how_long_the_rest_takes(elapsed: float, expected: str) -> None:
    stream, clock = FakeTerminal(), Clock()
    progress = LoadingBar(StatusLine(stream), "writing", eta=True, clock=clock)
    clock.now += elapsed
    progress(1 << 20, 4 << 20)
    assert stream.getvalue().endswith(f"25%  1.0/4.0 MiB  {expected}")


def test_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    clock, stream = iter([0.0, 2.0, 4.0]).__next__, FakeTerminal()
    progress = CountBar(StatusLine(stream), "embedding", 1000, clock=clock)
    progress(500)
    assert stream.getvalue().removeprefix(ERASE_LINE).startswith("embedding  [")
    assert stream.getvalue().endswith("]  500/1,000 texts  250/s  ETA 0:02")
    assert stream.getvalue().count("#") == stream.getvalue().count(".") > 10
    progress(1000)
    assert stream.getvalue().endswith(ERASE_LINE)
    clock, stream = iter([0.0, 2.0]).__next__, FakeTerminal()
    CountBar(StatusLine(stream), "embedding", None, clock=clock)(5000)
    assert stream.getvalue() == f"{ERASE_LINE}embedding  5,000 texts  2,500/s"
