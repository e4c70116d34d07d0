"""The test cases of each architecture, a file each: found by the rows of `ollama_engine.architectures`.

A file is named like its row, with underscores for hyphens, and holds CASES: of `families.Family` for a model that
writes, of `encoders.Case` for one that only reads, of `image_encoders.Case` for one that reads images alone.
`test_architectures` says what is missing.
"""

from __future__ import annotations

import functools
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ollama_engine.architectures import ARCHITECTURES

Case = TypeVar("Case")

FOLDER = Path(__file__).parent


def file_of(architecture: str) -> Path:
    """The file with the cases of an architecture."""
    return FOLDER / f"{architecture.replace('-', '_')}.py"


@functools.cache
def cases_of(architecture: str) -> tuple[Any, ...]:
    """None where it has no file."""
    path = file_of(architecture)
    cases: tuple[Any, ...] = import_module(f"{__name__}.{path.stem}").CASES if path.exists() else ()
    return cases


def all_cases(kind: type[Case], *, that_run: bool = False) -> tuple[Case, ...]:
    """Those of one kind, in the order of the rows. `that_run`: without architectures that have no model yet."""
    rows = [row for row in ARCHITECTURES if row.model is not None or not that_run]
    return tuple(case for row in rows for case in cases_of(row.name) if isinstance(case, kind))
