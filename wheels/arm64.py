"""Cross-build for ARM64, and run it where QEMU emulates that: `python wheels/arm64.py`, or `make arm64-check`.

Makes, in build/arm64: a minimal Debian for ARM64 with Python (root and mmdebstrap make it, once), ggml and our modules
by Debian's cross compiler, and what they depend on. There it runs the self-test, and pytest with the arguments given
here, on tests of the C code where they name no test. Says nothing of speed. Needs gcc-aarch64-linux-gnu,
g++-aarch64-linux-gnu, qemu-user-static, binfmt-support, arch-test and mmdebstrap.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from wheels import foreign  # noqa: E402 (beside this file)
from wheels.foreign import run  # noqa: E402

FOLDER = ROOT / "build" / "arm64"
DEBIAN, BUILD, SITE, TREE = FOLDER / "root", FOLDER / "build", FOLDER / "site", FOLDER / "tree"
PACKAGES = "python3,python3-dev,ca-certificates,libgomp1"
SUITE, PYTHON = "bookworm", "3.11"
LIBRARY = "aarch64-linux-gnu"
COMPILER = {"C": f"{LIBRARY}-gcc", "CXX": f"{LIBRARY}-g++"}
NEWEST_GLIBC = 36
"""Of SUITE: wheels for an older one are taken, too."""
PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{n}_aarch64" for n in range(17, NEWEST_GLIBC + 1)))
TESTS = ("tests/ml/ops", "tests/ml/weights", "tests/kvcache", "tests/sample", "tests/nn", "tests/tokenizer")


def main() -> None:
    """Make what is missing, build, run; SystemExit says what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, given = parser.parse_known_args()
    if not (DEBIAN / "usr/bin/python3").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        run("mmdebstrap", "--arch=arm64", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(DEBIAN))
    found = DEBIAN / f"usr/local/lib/python{PYTHON}/dist-packages/tree_and_site.pth"  # programs without an environment
    found.write_text("/tree\n/site\n")
    if not SITE.exists():
        foreign.install_packages(SITE, PYTHON, PLATFORMS)
    build()
    inside("python3 -m ollama_engine.selftest")
    options = ("-q", "-p", "no:cacheprovider", "--timeout=900", *foreign.IGNORED)
    inside(f"python3 -m pytest {shlex.join([*options, *pytest_arguments(given)])}")


def pytest_arguments(given: Sequence[str]) -> list[str]:
    """The arguments in their order, for options of pytest may have values; with TESTS where none names a test."""
    named = any((ROOT / each.partition("::")[0]).exists() for each in given)
    return [*given, *(() if named else TESTS)]


def build() -> None:
    """Compile, and lay a tree of the sources with the modules among them."""
    version = PYTHON.replace(".", "")
    headers = DEBIAN / "usr/include"
    options = {
        "CMAKE_BUILD_TYPE": "Release", "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        **{f"CMAKE_{language}_COMPILER": name for language, name in COMPILER.items()},
        **{f"CMAKE_{language}_FLAGS": f"-idirafter {headers}" for language in COMPILER},
        "CMAKE_CROSSCOMPILING_EMULATOR": shutil.which("env"),  # FindPython wants one; Cython runs here
        "Python_EXECUTABLE": sys.executable, "Python_INCLUDE_DIR": headers / f"python{PYTHON}",
        "GGML_NATIVE": "OFF", "GGML_CPU_ARM_ARCH": "armv8.2-a+dotprod+fp16",
    }  # fmt: skip
    run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *(f"-D{key}={value}" for key, value in options.items()))
    run("cmake", "--build", BUILD)
    foreign.copy_tree(TREE)
    run("cmake", "--install", BUILD, "--prefix", TREE)
    for module in (TREE / "ollama_engine").rglob("*.cpython-*.so"):  # FindPython gives them this machine's name
        module.rename(module.with_name(f"{module.name.split('.')[0]}.cpython-{version}-{LIBRARY}.so"))


def inside(command: str) -> None:
    """Run a shell command in the emulated Debian, in the tree."""
    foreign.run_inside(DEBIAN, {"tree": TREE, "site": SITE}, "/usr/bin:/bin", command)


if __name__ == "__main__":
    main()
