"""A line of progress on a terminal, redrawn in place and removed at the end. Writes nothing elsewhere."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

__all__ = ["CountBar", "LoadingBar", "StatusLine", "bar", "duration"]

ERASE_LINE = "\r\x1b[K"


class StatusLine:
    """A status line. A context manager, which removes the line at the end."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._enabled = stream.isatty()
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the line. A text wider than the terminal is cut off: a wrapped line could not be erased."""
        if self._enabled:
            self._stream.write(ERASE_LINE + text[: self.width])
            self._stream.flush()
            self._shown = True

    @property
    def width(self) -> int:
        """Columns available for the text."""
        return shutil.get_terminal_size().columns - 1

    def clear(self) -> None:
        if self._shown:
            self._stream.write(ERASE_LINE)
            self._stream.flush()
            self._shown = False

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


class LoadingBar:
    """Shows (bytes done, bytes in all) as a bar, once `delay` seconds have passed.

    `eta` adds the remaining time. The line is removed when all is done, so that later messages start on a new line.
    """

    def __init__(
        self,
        line: StatusLine,
        title: str,
        *,
        eta: bool = False,
        delay: float = 0.3,
        interval: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line = line
        self._title = title
        self._eta = eta
        self._interval = interval
        self._clock = clock
        self._start = clock()
        self._next = self._start + delay

    def __call__(self, done: int, total: int) -> None:
        """Draw, unless the last drawing is very recent."""
        if done >= total:
            self._line.clear()
            return
        now = self._clock()
        if now >= self._next:
            self._next = now + self._interval
            seconds = (now - self._start) * (total - done) / done if self._eta and done else None
            self._line.show(bar(self._title, done, total, self._line.width, seconds))


class CountBar:
    """Shows the number of texts done, of `total` where it is known, and texts per second."""

    def __init__(
        self, line: StatusLine, title: str, total: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._line = line
        self._title = title
        self._total = total
        self._clock = clock
        self._start = clock()

    def __call__(self, done: int) -> None:
        """Draw, or remove the line when all is done."""
        if done == self._total:
            self._line.clear()
            return
        rate = done / max(1e-9, self._clock() - self._start)
        if self._total is None:
            self._line.show(f"{self._title}  {done:,} texts  {rate:,.0f}/s")
            return
        numbers = f"{done:,}/{self._total:,} texts  {rate:,.0f}/s  ETA {duration((self._total - done) / rate)}"
        cells = max(0, min(40, self._line.width - len(self._title) - len(numbers) - 6))
        filled = cells * done // self._total
        self._line.show(f"{self._title}  [{'#' * filled}{'.' * (cells - filled)}]  {numbers}")


def bar(title: str, done: int, total: int, width: int, seconds: float | None = None) -> str:
    """`title  [####......]  40 %  0.4/1.0 GiB`, at most `width` wide unless the numbers alone are wider.

    `seconds`: remaining time, which is appended as `ETA 1:05`.
    """
    unit, name = (2**30, "GiB") if total >= 2**30 else (2**20, "MiB")
    share = done / total
    numbers = f"{share:4.0%}  {done / unit:.1f}/{total / unit:.1f} {name}"
    if seconds is not None:
        numbers += f"  ETA {duration(seconds)}"
    room = width - len(numbers) - 6
    title = title[: max(0, room // 2)]
    cells = min(40, max(0, room - len(title)))
    filled = int(share * cells)
    return f"{title}  [{'#' * filled}{'.' * (cells - filled)}]  {numbers}"


def duration(seconds: float) -> str:
    """`1:05`, or `2:00:30` from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
