"""Paths that users type: an error about a missing file suggests similar names."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from difflib import get_close_matches

__all__ = ["existing"]

SHOWN = 3
"""Most names that one message suggests."""


def existing(path: str, *known: str) -> str:
    """Return the path. Raises FileNotFoundError, which suggests similar names, where there is no such file.

    `known`: names that users may type instead of a path.
    """
    if os.path.lexists(path):
        return path
    near = _near(path, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if known and not near and os.sep not in path and not path.endswith(".gguf"):
        hint = f"; a model is a GGUF file, {' or '.join(known[:2])}, or a name that ollama-engine list shows; " \
               f"ollama-engine pull {path} downloads it, if a registry has it"  # fmt: skip
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT) + hint, path)


def _near(path: str, known: tuple[str, ...]) -> list[str]:

    folder, name = os.path.split(path.rstrip(os.sep))
    names = {} if folder else {entry: entry for entry in known}
    with suppress(OSError):
        names |= {entry.lower(): os.path.join(folder, entry) for entry in sorted(os.listdir(folder or "."))}
    return [names[match] for match in get_close_matches(name.lower(), names, SHOWN)]
