"""Packages whose names are imported when they are first used, so that importing the package costs nothing (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazy_names"]


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for the package of that full name.

    `homes` says for each name which module below the package has it; a name that is its own home is that module. `dir`
    lists the names in the package's `__all__`.
    """

    def get(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(f"{package}.{home}")
        except (ImportError, MemoryError, OSError, SystemError) as error:
            from ollama_engine.errors import short_of_memory  # noqa: PLC0415 (importing the package imports nothing else)

            if told := short_of_memory(error):
                raise told from error
            raise
        found = module if home == name else getattr(module, name)
        setattr(sys.modules[package], name, found)  # so that it is asked for once
        return found

    def names() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return get, names
