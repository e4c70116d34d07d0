"""Standard output and error of the program: characters that they lack, and failures that say where."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["discard_output", "flush_output", "open_closed_streams", "output_is_whole", "prepare_streams"]


def open_closed_streams() -> None:
    """Lead closed streams nowhere. The next file opened would have such a number, and get what C libraries print.

    Programs that are started inherit them, as any standard stream. Standard input stays None, for which commands have a
    message.
    """
    while (free := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(free, True)
    os.close(free)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (as long as the process)


def prepare_streams() -> None:
    """Have both print an escape for a character that the terminal's encoding lacks: nothing raises or is lost.

    Where Python keeps no buffer for standard output (PYTHONUNBUFFERED), a print fails before the flush that
    `output_is_whole` looks at: that flush fails again then.
    """
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        own = cast(BinaryIO, _Unbuffered(raw.fileno(), "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(own, sys.stdout.encoding, write_through=True)
    for stream in (sys.stdout, sys.stderr):
        _never_fail_on_characters(stream)


class _Unbuffered(io.FileIO):
    """A descriptor whose flushes fail, too, once a write did: argparse, for one, drops what a write raises."""

    failure: OSError | None = None

    def write(self, data: Buffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        super().flush()
        if self.failure is not None:
            raise self.failure


def _never_fail_on_characters(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def flush_output() -> None:
    """Flush standard output, so that a failure (a full disk) becomes an error message like any other."""
    if sys.stdout is not None:  # the parent process closed it
        sys.stdout.flush()


def output_is_whole() -> bool:
    """Flush standard output. False: it could not be written, and what was left is discarded."""
    try:
        flush_output()
    except OSError:
        discard_output()
        return False
    return True


def discard_output() -> None:
    """Redirect standard output to nowhere: Python's own flush at exit would print an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    raw = sys.stdout.buffer
    if isinstance(raw, _Unbuffered):
        raw.failure = None
