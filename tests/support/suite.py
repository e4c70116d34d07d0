"""How much a test does: little in the quick suite (`pytest`), everything in the whole one (`pytest --exhaustive`).

    CALLS = scaled(20_000, quick=2_000)
    @pytest.mark.parametrize("name", slow_except(NAMES, "gpt-2", "llama-bpe"))

Scripts that import test modules get the sizes of the whole suite.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

exhaustive = True
"""Set by tests/conftest.py before test modules are imported, though after the conftest.py of a folder is."""

on_workers = False
"""Whether models lie on workers (`pytest --on-workers`), whose results are near the CPU's. Set likewise."""


def scaled(full: T, *, quick: T) -> T:
    """How many examples, rounds or draws. Modules that the conftest.py of a folder imports call it in functions."""
    return full if exhaustive else quick


def slow_except(cases: Iterable[Any], *quick: Any, ids: Iterable[str] | None = None) -> list[Any]:
    """All cases as parameters; those that are not among `quick` are marked slow.

    `quick` are cases or what `str` makes of them; with `ids`, which the parameters get then, these.
    """
    cases, chosen = list(cases), {str(case) for case in quick}
    names = list(map(str, cases)) if ids is None else list(ids)
    if not chosen <= set(names):
        raise ValueError(f"{sorted(chosen - set(names))} are not among {names}")
    marks = [() if name in chosen else pytest.mark.slow for name in names]
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), id=None if ids is None else name, marks=mark)
        for case, name, mark in zip(cases, names, marks, strict=True)
    ]
