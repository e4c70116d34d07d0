"""Paths that callers type: what is not there is said with the names that come near it."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

__all__ = ["existing"]

SHOWN = 3
"""Names that one message offers at most."""


def existing(path: str, *known: str) -> str:
    """The path itself. Raises FileNotFoundError, which offers names that are nearly the same, where nothing is.

    `known` are names that callers may type instead of a path.
    """
    if os.path.lexists(path):
        return path
    near = _near(path, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT) + hint, path)


def _near(path: str, known: tuple[str, ...]) -> list[str]:
    from difflib import get_close_matches  # noqa: PLC0415 (for who mistyped only)

    folder, name = os.path.split(path.rstrip(os.sep))
    names = {} if folder else {entry: entry for entry in known}
    with suppress(OSError):
        names |= {entry.lower(): os.path.join(folder, entry) for entry in sorted(os.listdir(folder or "."))}
    return [names[match] for match in get_close_matches(name.lower(), names, SHOWN)]
