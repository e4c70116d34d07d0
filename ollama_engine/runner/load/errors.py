"""Errors of loading, each with the path of the file that it is about."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from ollama_engine.errors import ModelFormatError, NoMemoryError, Option, ShapeError, naming_no_memory

__all__ = ["SMALLER", "does_not_fit", "naming"]

SMALLER = (
    *(("lower ", Option(name)) for name in ("num_ctx", "parallel", "batch_size")),
    ("choose a smaller ", Option("kv_cache_type")),
)
"""Advice where the cache does not fit."""

DEMOS = {"demo": "path", "demo-vision": "vision_path"}
"""Names that the program accepts, and the functions of `ollama_engine.demo` that know their files."""


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Put the path into errors about the file's contents; turn a ShapeError of its tensors into ModelFormatError."""
    try:
        with naming_no_memory():
            yield
    except ShapeError as error:
        raise ModelFormatError(f"{path}: its tensors cannot be computed with: {error}") from error
    except FileNotFoundError as error:
        if path in DEMOS:
            raise _no_demo(error, path) from None
        raise
    except ModelFormatError as error:
        if str(error).startswith(path):
            raise
        raise error.behind(f"{path}: ") from error


def _no_demo(error: FileNotFoundError, name: str) -> FileNotFoundError:
    """The error for a missing file of such a name. Only the program accepts it; in Python a model is a path."""
    hint = f"; the model inside of this package is ollama_engine.demo.{DEMOS[name]}()"
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT) + hint, error.filename)


def does_not_fit(path: str, error: NoMemoryError, report: object) -> NoMemoryError:
    """The error that ends loading; the report says what was planned for each device."""
    return NoMemoryError(f"{path} does not fit: ", *error.parts, advice=error.advice, report=report)
