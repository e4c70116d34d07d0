"""Roots of another system, and what runs in them: what `arm64.py`, `musl.py` and `suite.py` share."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("ollama_engine", "tests", "bench", "docs", "examples", "csrc", "pyproject.toml", "README.md", "LICENSE")
JUDGES_OF_SOURCES = (
    "tests/house", "tests/website", "tests/wheels", "tests/ml/test_pxd.py", "tests/models/test_parity.py",
    "tests/plugins/test_key_suites.py",
)  # fmt: skip
IGNORED = tuple(f"--ignore={path}" for path in JUDGES_OF_SOURCES)
"""For pytest, where a part of the tree runs: these tests judge all of it."""

__all__ = ["IGNORED", "copy_tree", "dependencies", "install_packages", "pip", "run", "run_inside"]


def install_packages(site: Path, python: str, platforms: Iterable[str], *, without: Iterable[str] = ()) -> None:
    """Put what the package and its tests depend on into a folder, as wheels for other platforms.

    `python`: its version, such as "3.11". `without`: names of packages that have no such wheel.
    """
    wanted = dependencies("server", "test", without=without)
    run(*pip("install", python, platforms), "--target", site, *wanted)


def dependencies(*extras: str, without: Iterable[str] = ()) -> list[str]:
    """What the package needs, and its extras do, as pip wants it."""
    known = [line.replace('"', "'").split(";") for line in requires("ollama_engine") or ()]
    wanted = [name for name, *marker in known if not marker or any(f"'{extra}'" in marker[0] for extra in extras)]
    return [name for name in wanted if not name.startswith(("ollama_engine", *without))]


def pip(command: str, python: str, platforms: Iterable[str]) -> list[str]:
    """The beginning of a command of pip's that takes wheels for other platforms alone."""
    words = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", "--only-binary=:all:"]
    words += [f"--platform={name}" for name in platforms]
    words += [f"--python-version={python}", "--implementation=cp"]
    return words + [f"--abi={abi}" for abi in ("cp" + python.replace(".", ""), "abi3", "none")]


def copy_tree(tree: Path, *, leave_out: Iterable[str] = ()) -> None:
    """A new copy of the sources and tests, without compiled modules. `leave_out`: names of COPIED."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in sorted({*COPIED} - {*leave_out}):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(source, tree / name)


def run_inside(root: Path, folders: Mapping[str, Path], path: str, command: str) -> None:
    """Run a shell command in another root, as this one's root. `folders`: what it has more, by the names there.

    The command runs in the first of them, and Python looks for packages in all. /dev comes with what is mounted in it:
    terminals are in /dev/pts.
    """
    bound = {**folders, "dev": Path("/dev")}
    mounts = "".join(f"mkdir -p {root}/{name}; mount --rbind {at} {root}/{name}; " for name, at in bound.items())
    packages = ":".join(f"/{name}" for name in folders)
    variables = f"HOME=/root PATH={path} PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={packages}"
    there = shlex.quote(f"cd /{next(iter(folders))} && {command}")
    entered = f"chroot {root} env -i {variables} sh -c {there}"
    run("unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", "sh", "-ec", mounts + entered)


def run(*command: str | Path, **options: object) -> None:
    """Run a program with options of `subprocess.run`; SystemExit where it fails."""
    words = [str(word) for word in command]
    status = subprocess.run(words, check=False, **options).returncode  # type: ignore[call-overload]
    if status:
        raise SystemExit(f"`{' '.join(words[:3])} ...` ended with {status}")
