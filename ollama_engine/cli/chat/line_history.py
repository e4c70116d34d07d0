"""Line editing at the prompt, with a history that outlives the program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["line_history"]

MOST_LINES = 1000


@contextmanager
def line_history(*, used: bool = True) -> Iterator[None]:
    """Arrow keys edit lines and go through those of earlier runs, where Python was built with readline.

    The file is `ollama_engine/history` in $XDG_STATE_HOME (default ~/.local/state), for its owner's eyes only. Where
    it cannot be read or written, lines are remembered until the program ends. Does nothing unless `used`.
    """
    readline = _readline() if used else None
    if readline is None:
        yield
        return
    path = _path()
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(MOST_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)


def _readline() -> Any:
    try:
        import readline  # noqa: PLC0415 (not everywhere; and importing it changes how input() reads)
    except ImportError:
        return None
    return readline


def _path() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ollama_engine" / "history"
