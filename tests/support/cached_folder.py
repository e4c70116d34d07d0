"""Folders that are downloaded once and kept."""

from __future__ import annotations

from pathlib import Path


def put(made: Path, folder: Path) -> None:
    """Rename a complete folder to its place; where another process was quicker, that one's stays."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
