"""Budget: how much one rendering of a chat template may do, in steps and in characters, and when it has to end.

A template may come from an untrusted file. What it does is paid for before it is done, as far as that can be
known, so that neither a loop, nor texts that double, nor lists that hold each other twice take long or fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from ollama_engine.errors import ChatError

__all__ = ["Budget", "check_source", "checked_by", "current_budget", "size_of"]

STEPS, STEPS_EACH, MOST_STEPS = 1 << 15, 64, 1 << 24
"""Steps of a rendering, more for each character that it is given, and at most. One takes up to a microsecond."""
CHARACTERS, CHARACTERS_EACH, MOST_CHARACTERS = 1 << 24, 4096, 1 << 31
"""Characters that it reads and makes, all in all, more for each that it is given, and at most. Some templates copy what
they have written for each message."""
MOST_SOURCE = 1 << 17
"""Characters of a template. To compile so many takes a second or two; published ones have some ten thousands."""
BETWEEN_CHECKS = 1000
"""Steps between two looks at whether the request was cancelled, or is late."""

Made = TypeVar("Made")

_current: ContextVar[Budget | None] = ContextVar("budget", default=None)
_check: ContextVar[Callable[[], object] | None] = ContextVar("check", default=None)


class Budget:
    """What one rendering may still do; used by one thread. `given`: characters and values of its variables."""

    def __init__(self, given: int = 0) -> None:
        self._steps = min(MOST_STEPS, STEPS + STEPS_EACH * given)
        self._characters = min(MOST_CHARACTERS, CHARACTERS + CHARACTERS_EACH * given)
        self._until_check = BETWEEN_CHECKS
        self._check = _check.get()

    def step(self, count: int = 1) -> None:
        """Pay for steps. Raises SecurityError where too few are left, and what the check says."""
        self._steps -= count
        if self._steps < 0:
            raise SecurityError("a chat template takes too many steps for what it is given; it may never end")
        self._until_check -= count
        if self._until_check < 0:
            self._until_check = BETWEEN_CHECKS
            if self._check is not None:
                self._check()

    def characters(self, count: int) -> None:
        """Pay for characters. Raises SecurityError where too few are left."""
        self._characters -= count
        if self._characters < 0:
            raise SecurityError("a chat template makes far more text than it is given; it would fill the memory")

    def read(self, value: object) -> None:
        """Pay for a look at each character of a text, or each item of a list."""
        if isinstance(value, str):
            self.characters(len(value))
        elif isinstance(value, (list, tuple, Mapping)):
            self.step(len(value) >> 4)

    def nested(self, value: object, *, texts: bool = False) -> None:
        """Pay for all values inside a value, for each place where they are; with `texts`, for their characters too."""
        for inner in values_of(value):
            self.step()
            if texts and isinstance(inner, str):
                self.characters(len(inner))

    def made(self, value: Any) -> Any:
        """A result, paid for. The items of one that comes by and by are paid for as they come."""
        if isinstance(value, Iterator):
            return self._counted(value)
        self.read(value)
        return value

    def _counted(self, values: Iterator[Any]) -> Iterator[Any]:
        for value in values:
            self.step()
            yield value

    @contextmanager
    def spent(self) -> Iterator[None]:
        """What this thread renders is paid for by this budget."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


def check_source(source: str) -> None:
    """Raise ChatError for a template that is too long to be compiled."""
    if len(source) > MOST_SOURCE:
        raise ChatError(f"a chat template has {MOST_SOURCE} characters at most, got {len(source)}")


def current_budget() -> Budget:
    """The budget of what this thread renders; a new one outside of any rendering."""
    return _current.get() or Budget()


def checked_by(check: Callable[[], object] | None, work: Callable[[], Made]) -> Made:
    """The result of `work`. An exception of `check` ends what it renders.

    It runs in a context of its own. A variable that were set and reset here might stay set where a signal, such as
    Ctrl-C, comes in between, and its check would end all that this thread renders later.
    """
    context = copy_context()
    context.run(_check.set, check)
    return context.run(work)


def values_of(value: object) -> Iterator[object]:
    """A value and all inside of it. One that stands in several places comes as often."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        yield one
        if isinstance(one, (list, tuple)):
            waiting.extend(one)
        elif isinstance(one, Mapping):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, Namespace):
            waiting.extend(one._Namespace__attrs.values())


def size_of(value: object) -> int:
    """Characters and values in a value."""
    return sum(len(one) if isinstance(one, str) else 1 for one in values_of(value))
