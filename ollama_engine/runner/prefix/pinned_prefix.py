"""PinnedPrefix: what a session has in the cache, and what of it goes into a file. The loop's thread owns it."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine.kvcache import SavedRows

__all__ = ["PinnedPrefix", "Saved"]


@dataclass(slots=True, eq=False)
class PinnedPrefix:
    """A session's cache sequence. Its history is pinned: it goes when the session says so."""

    slot: int | None = None
    """None until something was computed."""
    release: object = None
    """What is done when the session goes: it must outlive the session, and does as long as the cache knows the
    pinned.
    """
    closed: bool = False
    """The session is gone; a request of it that still runs is one like any other."""


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """The keys and values of a session."""

    length: int = 0
    """Of so many tokens at its beginning."""
    exact: int | None = None
    """As in `CachedSequence`."""
    parts: tuple[SavedRows, ...] = ()
    """As `Saveable.save` gives them."""
