"""Control tokens that a template writes in a way that loses their marks."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ollama_engine.chat.provenance import Span, trusted_spans

__all__ = ["lost_tokens"]


def lost_tokens(text: str, places: Iterable[Span], given: object) -> set[str]:
    """The control tokens that stand in untrusted characters of a rendered text, though no caller's text holds them.

    Args:
        text: as the template renders it, with its marks.
        places: where it holds control tokens.
        given: what the callers pass: texts in dicts, lists and dataclasses.
    """
    spans, plain = trusted_spans(text), str.__str__(text)
    begins = [begin for begin, _ in spans]

    def trusted(begin: int, end: int) -> bool:
        before = bisect_right(begins, begin) - 1
        return before >= 0 and end <= spans[before][1]

    found = {plain[begin:end] for begin, end in places if not trusted(begin, end)}
    for typed in _texts(given) if found else ():
        found = {token for token in found if token not in typed}
    return found


def _texts(given: object) -> Iterator[str]:
    """All texts in plain data and dataclasses; nothing nested too deeply, for `plain_data` refuses that."""
    waiting: list[Any] = [given]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += value.keys()
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            waiting += (getattr(value, entry.name) for entry in dataclasses.fields(value))
