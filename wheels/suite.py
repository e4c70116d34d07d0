"""The tests with a wheel as it is installed: `python wheels/suite.py WHEEL --python PYTHON [TESTS ...]`, or
`make wheels WHEEL_TESTS=tests` for each wheel that is built.

They run by a Python of an environment of their own, in a copy of the tree that has no `ollama_engine/`: what is
imported there is the wheel's. Left out are tests of the sources (JUDGES_OF_SOURCES), which a wheel does not have.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from wheels import foreign  # noqa: E402 (beside this file)
from wheels.foreign import run  # noqa: E402

FOLDER = ROOT / "build" / "wheels"
JUDGES_OF_SOURCES = ("tests/house", "tests/website", "tests/wheels", "tests/ml/test_pxd.py")
TESTS = ("tests",)


def main() -> None:
    """Run them; SystemExit where one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("tests", nargs="*", default=TESTS, help="what pytest runs; it gets unknown options, too")
    parser.add_argument("--python", required=True, help="a Python that the wheel is for")
    chosen, options = parser.parse_known_args()
    run_tests(chosen.wheel, chosen.python, [*chosen.tests, *options])


def run_tests(wheel: Path, python: str, tests: list[str]) -> None:
    """Install a wheel with what its tests need in an empty environment, and run them. SystemExit where one fails."""
    folder = FOLDER / f"suite-{tag(wheel)}"
    shutil.rmtree(folder, ignore_errors=True)
    foreign.copy_tree(folder / "tree", leave_out=["ollama_engine"])
    run(python, "-m", "venv", folder / "env")
    here = folder / "env/bin/python"
    run(here, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel.resolve()}[test]")
    left_out = [f"--ignore={path}" for path in JUDGES_OF_SOURCES]
    run(here, "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, *tests, cwd=folder / "tree")


def tag(wheel: Path) -> str:
    """Which Python a wheel is for, as its name says it: cp313t."""
    return wheel.name.split("-")[3]


if __name__ == "__main__":
    main()
