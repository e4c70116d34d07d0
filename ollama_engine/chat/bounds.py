"""Limits on the result of one operation in a chat template, which may come from an untrusted file.

They are known before it is done. What a whole rendering may do is the business of `budget`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

from jinja2.exceptions import SecurityError

__all__ = ["WIDENING", "bounded", "check_json_layout", "check_method", "check_operation"]

LONGEST = 1 << 26
"""Characters, or items of a list."""
MOST_BITS = 1 << 16
"""Bits of a number: two of more take long to be multiplied."""

WIDENING = ("batch", "center", "indent", "slice")
"""Filters of jinja2 whose results grow with a number that they are given."""

WIDEST = 100
"""Characters of an indentation or a separator of JSON, which are written for each value."""

_WIDTHS = re.compile(r"%[-+ #0]*([0-9]*)(?:\.([0-9]+))?|:[^{}]*?([0-9]+)(?:\.([0-9]+))?[^{}]*\}")
"""Width and precision of fields, of `%` and of `format`."""
_INNER_FIELD = re.compile(r":[^{}]*\{")
"""A width that is one of the values."""


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raise SecurityError for `*`, `**` or `%` with too large a result."""
    if operator == "**" and isinstance(left, int) and isinstance(right, int) and right > 0:
        _check(left.bit_length() * right, MOST_BITS)
    elif operator == "%" and isinstance(left, (str, bytes)):
        _check_widths(left)
        _check_numbers(right if "*" in str(left) and isinstance(right, tuple) else ())
    elif operator == "*" and isinstance(left, int) and isinstance(right, int):
        _check(left.bit_length() + right.bit_length(), MOST_BITS)
    elif operator == "*":
        for several, times in ((left, right), (right, left)):
            if isinstance(several, (str, bytes, list, tuple)) and isinstance(times, int):
                _check(len(several) * times)


def _check_numbers(given: Iterable[object]) -> None:
    """Raise SecurityError for a whole number among the arguments of a text's method that is too large for a length."""
    for value in given:
        if isinstance(value, int):
            _check(abs(value))


def check_method(text: object, name: str, given: Sequence[object]) -> None:
    """Raise SecurityError for a method of a text, or of a number, with too large a result."""
    if name not in ("format", "format_map"):
        _check_numbers(given)
        return
    _check_widths(text)
    if _INNER_FIELD.search(str(text)):
        for values in given:
            _check_numbers(values.values() if isinstance(values, Mapping) else (values,))


def _check_widths(form: object) -> None:
    """Raise SecurityError for too wide fields in a format, of `%` or of `format`."""
    _check(sum(int(digits[:12]) for found in _WIDTHS.findall(str(form)) for digits in found if digits))


def check_json_layout(indent: object, separators: Iterable[object] | None) -> None:
    """Raise SecurityError for an indentation or separators of `tojson` that are too wide."""
    for given in (indent, *(separators or ())):
        width = given if isinstance(given, int) else len(given) if isinstance(given, str) else 0
        if width > WIDEST:
            raise SecurityError(f"a chat template writes {width} characters at once between values of JSON; "
                                f"{WIDEST} are the most")  # fmt: skip


def bounded(made: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks the numbers it is given."""

    @wraps(made)
    def checked(*args: Any, **values: Any) -> Any:
        _check_numbers((*args, *values.values()))
        return made(*args, **values)

    return checked


def _check(length: int, most: int = LONGEST) -> None:
    if length > most:
        raise SecurityError(f"a chat template makes {length} characters, items or bits at once; {most} is the most")
