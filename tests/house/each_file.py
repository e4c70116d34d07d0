"""Rules about files: one test for a rule, which names every file that breaks it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def for_each(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """The test that calls a rule for each file; it fails with what the rule's assertions say."""
    files = tuple(paths)

    def test_of(rule: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            assert files, "the rule is about no file at all"
            broken = []
            for path in files:
                try:
                    rule(path)
                except AssertionError as error:
                    broken.append(f"{path.relative_to(ROOT)}: {error}")
            if broken:
                pytest.fail("\n".join(broken), pytrace=False)

        test.__doc__ = rule.__doc__
        return test

    return test_of
