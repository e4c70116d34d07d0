"""Paths that callers type: what is not there is said with the names that come near it."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

__all__ = ["existing"]

SHOWN = 3
"""Names that one message offers at most."""


def existing(text: str) -> str:
    """The path itself. Raises FileNotFoundError, which offers names that are nearly the same, where nothing is."""
    path = Path(text)
    if os.path.lexists(path):
        return text
    names: dict[str, str] = {}
    with suppress(OSError):
        names = {name.lower(): name for name in sorted(os.listdir(path.parent))}
    near = [str(path.parent / names[name]) for name in get_close_matches(path.name.lower(), names, SHOWN)]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT) + hint, text)
