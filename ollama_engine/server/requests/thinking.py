"""Reasoning as clients ask for it, in the ways that a model's template may have it."""

from __future__ import annotations

__all__ = ["NO_REASONING", "REASONING", "Ways", "ways_of_effort"]

Ways = tuple[bool | str | None, ...]
"""The engine's `think`: the way that is asked for, and others that do where the template has no such switch."""

NO_REASONING: Ways = (False, None)
"""A model that always reasons does so; its reasoning comes apart from the answer."""
REASONING: Ways = (True,)
LEVELS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def ways_of_effort(effort: str | None) -> Ways:
    """For an effort of OpenAI's. Where the template has a switch, but no levels, every level turns it on."""
    if effort is None:
        return (None,)
    return NO_REASONING if effort == "none" else (LEVELS[effort], True)
