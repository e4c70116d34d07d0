"""Paths that users type: an error about a missing file suggests similar names."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from difflib import get_close_matches

__all__ = ["existing"]

SHOWN = 3
"""Most names that one message suggests."""


def existing(path: str, *known: str, hint: str = "") -> str:
    """Return the path. Raises FileNotFoundError, which suggests similar names, where there is no such file.

    `known`: names that users may type instead of a path. `hint`: how to get one that is like none of them.
    """
    if os.path.lexists(path):
        return path
    near = _near(path, known)
    hint = f"; did you mean {_any_of(near)}?" if near else hint
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT) + hint, path)


def _any_of(names: list[str]) -> str:
    """The names with commas between them, and "or" before the last."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def _near(path: str, known: tuple[str, ...]) -> list[str]:
    folder, name = os.path.split(path.rstrip(os.sep))
    names = {} if folder else {entry: entry for entry in known}
    with suppress(OSError):
        names |= {entry.lower(): os.path.join(folder, entry) for entry in sorted(os.listdir(folder or "."))}
    return [names[match] for match in get_close_matches(name.lower(), names, SHOWN)]
