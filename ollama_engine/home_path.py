"""`~` at the beginning of a path, which no shell has read in a program, a variable or a file of settings."""

from __future__ import annotations

import errno
import os

__all__ = ["at_home", "made_at_home"]


def at_home(path: str | os.PathLike[str]) -> str:
    """The path as a str; `~` is the user's home, `~name` that of another, unless there is a file of that very name.

    A path stays as it is where there is no such user.
    """
    text = os.fsdecode(path)
    return text if os.path.lexists(text) else os.path.expanduser(text)


def made_at_home(path: str | os.PathLike[str]) -> str:
    """The path of a folder that is made where it is not there. A folder "~" here is never meant.

    Raises FileNotFoundError for `~name` where there is no such user: it would be made here, under this name.
    """
    folder = os.path.expanduser(os.fsdecode(path))
    if folder.startswith("~") and not os.path.lexists(folder):
        told = f"there is no home folder of this name; write {os.path.abspath(folder)} for a folder here"
        raise FileNotFoundError(errno.ENOENT, told, folder)
    return folder
