"""Whether two builds of a wheel are the same bytes: `python wheels/reproduce.py [--variants "x64"]`.

Builds the committed sources twice, in two folders with names of different lengths and without ccache, and compares the
wheels' hashes; where they differ, prints which files do. All CPU variants take an hour; a few show as much of the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("first", "a-second-folder/below")


def main() -> None:
    """Build twice and compare; exit code 1 where the wheels differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default="x64", metavar="A;B", help="CPU variants of ggml; an empty one for all")
    parser.add_argument("--ccache", action="store_true", help="quick, and shows only what linking and packing do")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temp:
        wheels = [built(Path(temp) / folder, chosen.variants, ccache=chosen.ccache) for folder in FOLDERS]
        hashes = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
        for wheel, digest in zip(wheels, hashes, strict=True):
            print(f"{digest}  {wheel.relative_to(temp)}")
        if hashes[0] != hashes[1]:
            raise SystemExit("the wheels differ in: " + ", ".join(differing(*wheels)))
    print("two builds, the same bytes")


def built(folder: Path, variants: str, *, ccache: bool) -> Path:
    """A wheel of the committed sources, built in a folder."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    env = {"SOURCE_DATE_EPOCH": time.strip(), **({} if ccache else {"CCACHE_DISABLE": "1"})}
    command = [sys.executable, "wheels/build.py", "--python", sys.executable, "--variants", variants]
    subprocess.run(command, cwd=folder, env={**os.environ, **env}, check=True)
    return next((folder / "dist").glob("*.whl"))


def differing(first: Path, second: Path) -> list[str]:
    """Files of two wheels that are not in both with the same bytes; their order, where nothing else differs."""
    one, two = zipfile.ZipFile(first), zipfile.ZipFile(second)
    names = sorted({*one.namelist(), *two.namelist()})
    absent = [name for name in names if (name in one.namelist()) != (name in two.namelist())]
    return absent or [name for name in names if one.read(name) != two.read(name)] or ["times or order of the archive"]


if __name__ == "__main__":
    main()
