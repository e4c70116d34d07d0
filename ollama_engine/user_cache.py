"""The folder for files that this program can make again."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """The folder for files that this program can make again, in $XDG_CACHE_HOME where that is set.

    Raises OSError where the user has no home.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():  # the specification has all others ignored
        return base / "ollama_engine"
    try:
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ollama_engine"
    except RuntimeError as error:
        raise OSError(errno.ENOENT, str(error)) from None
