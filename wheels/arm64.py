"""A wheel for ARM64 Linux, and what it computes where QEMU emulates that: `python wheels/arm64.py`, or `make
arm64-check`; `--build`, or `make wheel-arm64`, builds and checks it alone.

It has ggml for every ARM64 CPU and all our kernels, by Debian's cross compiler, for the Python of SUITE, and asks for
symbols of glibc 2.28. Made in build/arm64 are a minimal Debian for ARM64 with Python (root and mmdebstrap make it,
once), the wheel's modules among the sources, and what they depend on. There it runs the self-test on each of CPUS, and,
on the last of them, pytest with the arguments given here, on tests of the C code where they name no test. Says nothing
of speed. Needs g++-aarch64-linux-gnu, qemu-user-static, binfmt-support, arch-test and mmdebstrap.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from wheels import build, check, foreign  # noqa: E402 (beside this file)
from wheels.foreign import run  # noqa: E402

FOLDER = ROOT / "build" / "arm64"
DEBIAN, SITE, TREE, OUT = FOLDER / "root", FOLDER / "site", FOLDER / "tree", FOLDER / "wheel"
PACKAGES = "python3,python3-dev,ca-certificates,libgomp1"
SUITE, PYTHON = "bookworm", "3.11"
MACHINE = "aarch64"
LIBRARY = f"{MACHINE}-linux-gnu"
NEWEST_GLIBC = 36
"""Of SUITE: wheels for an older one are taken, too."""
PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{n}_aarch64" for n in range(17, NEWEST_GLIBC + 1)))
CPUS = ("cortex-a72", "neoverse-n1", "a64fx", "max,sve128=on", "max,sve256=on")
"""QEMU's names. The last two have the instructions of Neoverse N2 and V1, and more. With SVE vectors of 512 bits and
i8mm, which QEMU's `max` has and no CPU that is known, ggml computes Q4_K and Q6_K wrongly."""
TESTS = ("tests/ml/ops", "tests/ml/weights", "tests/kvcache", "tests/sample", "tests/nn", "tests/tokenizer")


def main() -> None:
    """Make what is missing, build, run; SystemExit says what failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--build", action="store_true", help="the wheel alone")
    parser.add_argument("--variants", default="", metavar="A;B", help="CPU variants of ggml, of which all are built")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheel")
    chosen, given = parser.parse_known_args()
    make_root()
    wheel = built(chosen.variants, chosen.out)
    check.main([str(wheel)])
    if chosen.build:
        return
    lay_tree(wheel)
    for cpu in CPUS:
        print(f"on {cpu}:", flush=True)
        inside("python3 -m ollama_engine.selftest", cpu)
    options = ("-q", "-p", "no:cacheprovider", "--timeout=900", *foreign.IGNORED)
    inside(f"python3 -m pytest {shlex.join([*options, *pytest_arguments(given)])}")


def make_root() -> None:
    """A Debian, and what the package and its tests depend on; made once."""
    if not (DEBIAN / "usr/bin/python3").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        run("mmdebstrap", "--arch=arm64", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(DEBIAN))
    found = DEBIAN / f"usr/local/lib/python{PYTHON}/dist-packages/tree_and_site.pth"  # programs without an environment
    found.write_text("/tree\n/site\n")
    if not SITE.exists():
        foreign.install_packages(SITE, PYTHON, PLATFORMS)


def pytest_arguments(given: Sequence[str]) -> list[str]:
    """The arguments in their order, for options of pytest may have values; with TESTS where none names a test."""
    named = any((ROOT / each.partition("::")[0]).exists() for each in given)
    return [*given, *(() if named else TESTS)]


def built(variants: str, out: Path) -> Path:
    """The wheel, under the name that auditwheel gives it."""
    old = FOLDER / "old_symbols"
    compilers = {**os.environ, "CC": f"{LIBRARY}-gcc", "CXX": f"{LIBRARY}-g++"}
    run(sys.executable, ROOT / "wheels/old_symbols.py", old, env=compilers)
    ggml = build.BUILD / "ggml"
    run(sys.executable, ROOT / "csrc/ggml/fetch.py", ROOT / "csrc/ggml/ggml.lock", ggml)
    headers = DEBIAN / "usr/include"
    defined = {
        "OLLAMA_ENGINE_PORTABLE": "ON", "OLLAMA_ENGINE_CPU_VARIANTS": variants, "OLLAMA_ENGINE_GGML_SOURCE": ggml,
        "OLLAMA_ENGINE_OLD_SYMBOLS": old, "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": MACHINE,
        "CMAKE_C_FLAGS": f"-idirafter {headers}", "CMAKE_CXX_FLAGS": f"-idirafter {headers}",
        "CMAKE_CROSSCOMPILING_EMULATOR": shutil.which("env"),  # FindPython wants one; Cython runs here
        "Python_INCLUDE_DIR": headers / f"python{PYTHON}",
    }  # fmt: skip
    soabi = f"cpython-{PYTHON.replace('.', '')}-{LIBRARY}"
    env = compilers | {
        "_PYTHON_HOST_PLATFORM": f"linux-{MACHINE}", "SETUPTOOLS_EXT_SUFFIX": f".{soabi}.so",
        "SOURCE_DATE_EPOCH": build.commit_time(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    shutil.rmtree(OUT, ignore_errors=True)
    options = [f"--config-settings=cmake.define.{key}={value}" for key, value in defined.items()]
    options += [f"--config-settings=build-dir={FOLDER / 'build'}", "--no-deps", "--no-build-isolation"]
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", OUT, ROOT, env=env)
    return build.audited(next(OUT.glob("*.whl")), out)


def lay_tree(wheel: Path) -> None:
    """The sources and tests, with the wheel's modules among them."""
    foreign.copy_tree(TREE)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(TREE, [name for name in archive.namelist() if name.endswith(".so")])


def inside(command: str, cpu: str = CPUS[-1]) -> None:
    """Run a shell command in the emulated Debian, in the tree, on a CPU of QEMU's."""
    foreign.run_inside(DEBIAN, {"tree": TREE, "site": SITE}, "/usr/bin:/bin", f"export QEMU_CPU={cpu}; {command}")


if __name__ == "__main__":
    main()
