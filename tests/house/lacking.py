"""Which tests cannot be collected where packages are missing: `python -m tests.house.lacking PACKAGE...`.

Prints JSON: how many test modules were imported or skipped, and what the others say.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]


class Lacking(NamedTuple):
    """Packages that this process does not find, installed or not."""

    packages: frozenset[str]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


class Collection:
    """Imports test modules as pytest would."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(imported=0, skipped=0)
        self.failed: dict[str, str] = {}

    def add_folder(self, folder: Path) -> None:
        """Its conftest.py, which may skip the whole folder; then its modules, and folders."""
        conftest = folder / "conftest.py"
        if conftest.exists() and not self._is_imported(conftest):
            return
        for path in sorted(folder.glob("test_*.py")):
            self.counts["imported"] += self._is_imported(path)
        for path in sorted(folder.iterdir()):
            if (path / "__init__.py").exists():
                self.add_folder(path)

    def _is_imported(self, path: Path) -> bool:
        name = ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
        try:
            import_module(name)
        except pytest.skip.Exception:
            self.counts["skipped"] += 1
            return False
        except Exception as error:
            self.failed[name] = repr(error)
            return False
        return True


if __name__ == "__main__":
    sys.meta_path.insert(0, Lacking(frozenset(sys.argv[1:])))
    collection = Collection()
    collection.add_folder(TESTS)
    print(json.dumps({**collection.counts, "failed": collection.failed}))
