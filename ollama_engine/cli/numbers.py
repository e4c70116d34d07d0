"""Numbers on the command line: readers for argparse, whose own message is "invalid int value"."""

from __future__ import annotations

import argparse

__all__ = ["NUMBER", "WHOLE_NUMBER", "read_number", "read_whole_number"]

NUMBER, WHOLE_NUMBER = "a number", "a whole number"


def read_whole_number(text: str) -> int:
    """An int. Raises ArgumentTypeError, which says what was expected."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected {WHOLE_NUMBER}, got {text!r}") from None


def read_number(text: str) -> float:
    """A float. Raises ArgumentTypeError, which says what was expected."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected {NUMBER}, got {text!r}") from None
