"""Errors of loading, each with the path of the file that it is about."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from ollama_engine.errors import ModelFormatError, NoMemoryError, Option, ShapeError, naming_no_memory

__all__ = ["SMALLER", "does_not_fit", "naming", "warn_of_unused"]

log = logging.getLogger(__name__)

SMALLER = (
    *(("lower ", Option(name)) for name in ("num_ctx", "parallel", "batch_size")),
    ("choose a smaller ", Option("kv_cache_type")),
)
"""Advice where the cache does not fit."""


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Put the path into errors about the file's contents; turn a ShapeError of its tensors into ModelFormatError."""
    try:
        with naming_no_memory():
            yield
    except ShapeError as error:
        raise ModelFormatError(f"{path}: its tensors cannot be computed with: {error}") from error
    except ModelFormatError as error:
        if error.path is not None or str(error).startswith(path):
            error.path = error.path or path
            raise
        named = error.behind(f"{path}: ")
        named.path = path
        raise named from error


def warn_of_unused(names: Sequence[str], architecture: str) -> None:
    """Log the tensors of a file that its architecture does not read, if there are any."""
    if names:
        shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
        log.warning("architecture %s does not use %d of the file's tensors: %s", architecture, len(names), shown)


def does_not_fit(path: str, error: NoMemoryError, report: object) -> NoMemoryError:
    """The error that ends loading; the report says what was planned for each device."""
    return NoMemoryError(f"{path} does not fit: ", *error.parts, advice=error.advice, report=report)
