"""`~` at the beginning of a path, which no shell has read in a program, a variable or a file of settings."""

from __future__ import annotations

import os

__all__ = ["at_home"]


def at_home(path: str | os.PathLike[str]) -> str:
    """The path as a str; `~` is the user's home, `~name` that of another, unless there is a file of that very name.

    A path stays as it is where there is no such user.
    """
    text = os.fsdecode(path)
    return text if os.path.lexists(text) else os.path.expanduser(text)
