"""PinnedPrefix: the cache sequence of a session; Saved: its contents for a file. The engine thread owns both."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine.kvcache import SavedRows

__all__ = ["PinnedPrefix", "Saved"]


@dataclass(slots=True, eq=False)
class PinnedPrefix:
    """A session's cache sequence, pinned until the session releases it."""

    slot: int | None = None
    """The cache sequence; None before the first computation."""
    release: object = None
    """The task that releases the sequence after the session is collected. Kept here, since it must outlive the
    session.
    """
    closed: bool = False
    """Whether the session is gone; a request of it that still runs is then an ordinary request."""


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """The keys and values of a session."""

    length: int = 0
    """Number of tokens, from the beginning of the session, that have keys and values."""
    exact: int | None = None
    """See `CachedSequence.exact`."""
    parts: tuple[SavedRows, ...] = ()
    """The result of `Saveable.save`."""
