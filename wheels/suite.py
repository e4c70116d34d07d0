"""The tests with a wheel as it is installed: `python wheels/suite.py WHEEL --python PYTHON [TESTS ...]`, or
`make wheels WHEEL_TESTS=tests` for each wheel that is built.

They run by a Python of an environment of their own, in a copy of the tree that has no `ollama_engine/`: what is
imported there is the wheel's. Left out are tests of the sources, which a wheel does not have. For a Python of NO_WHEEL,
packages are left out, too: each test that needs one is skipped and says so.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from wheels import foreign  # noqa: E402 (beside this file)
from wheels.foreign import run  # noqa: E402

FOLDER = ROOT / "build" / "wheels"
TESTS = ("tests",)
NO_WHEEL = {"cp313t": ("huggingface_hub", "llguidance", "safetensors", "tokenizers")}
"""Of each Python, packages that have no wheel for it. There packages come without their own extras, too: uvicorn's
`standard` adds uvloop and httptools, which have none either."""


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
    lacking = NO_WHEEL.get(tag(wheel), ())
    pip = (here, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, *(packages(wheel, lacking) if lacking else [f"{wheel.resolve()}[test]"]))
    left_out = [*foreign.IGNORED]
    if lacking:
        print(f"without {', '.join(lacking)}, and without extras of packages, such as uvicorn's", flush=True)
        left_out += ["-p", "tests.plugins.without", *(f"--without={name}" for name in lacking)]
    run(here, "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, *tests, cwd=folder / "tree")


def packages(wheel: Path, lacking: Iterable[str]) -> list[str]:
    """A wheel and what its tests need, as pip wants it, without some packages and without extras of all.

    A release that has a wheel is taken before a newer one that has none.
    """
    needed = foreign.dependencies("server", "test", without=lacking)
    return ["--prefer-binary", str(wheel.resolve()), *(re.sub(r"\[.*\]", "", name) for name in needed)]


def tag(wheel: Path) -> str:
    """Which Python a wheel is for, as its name says it: cp313t."""
    return wheel.name.split("-")[3]


if __name__ == "__main__":
    main()
