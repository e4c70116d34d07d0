"""A griffe extension: classes whose docstring is made of their fields' `help` texts show it in the reference, too."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import griffe


class Documented(griffe.Extension):
    """Reads the docstrings that `ollama_engine.config.documented` makes when a class is imported."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Take the class's docstring as it is at run time, where a decorator has added to it."""
        if any(str(decorator.value) == "documented" for decorator in cls.decorators) and cls.docstring is not None:
            cls.docstring.value = inspect.getdoc(pydoc.locate(cls.path)) or ""
