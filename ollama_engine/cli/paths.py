"""Paths that callers type: what is not there is said with the names that come near it."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

__all__ = ["existing"]

SHOWN = 3
"""Names that one message offers at most."""


def existing(text: str) -> str:
    """The path itself. Raises FileNotFoundError, which offers names that are nearly the same, where nothing is."""
    if os.path.lexists(text):
        return text
    near = _near(text)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT) + hint, text)


def _near(text: str) -> list[str]:
    # Most paths exist, and these take longer to import than a command to be read.
    from difflib import get_close_matches  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    path = Path(text)
    names: dict[str, str] = {}
    with suppress(OSError):
        names = {name.lower(): name for name in sorted(os.listdir(path.parent))}
    return [str(path.parent / names[name]) for name in get_close_matches(path.name.lower(), names, SHOWN)]
