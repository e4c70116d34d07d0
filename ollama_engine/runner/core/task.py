"""Task: work that needs the cache while no step is in flight."""

from __future__ import annotations

from typing import Protocol, TypeVar

__all__ = ["Task"]

Core_contra = TypeVar("Core_contra", contravariant=True)


class Task(Protocol[Core_contra]):
    """Work that needs the cache while no step is in flight, such as saving a session.

    Neither method raises: a task passes its result, or its error, to the caller that waits for it.
    """

    def run(self, core: Core_contra) -> None:
        """Do the work on the engine thread."""

    def fail(self, error: BaseException) -> None:
        """Pass `error` to the caller instead: the engine is closing or has failed."""
