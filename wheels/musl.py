"""A wheel for x86-64 Linux with musl, such as Alpine, and what it does there: `python wheels/musl.py [TESTS ...]`, or
`make wheel-musl`.

Makes, in build/musl: a Python for musl out of Debian's sources (once), and a root that has it, musl and busybox. The
wheel's C is compiled by musl-gcc, its C++ by zig, whose libc++ becomes part of each library; auditwheel names it. In
the root pip installs it and what it depends on: not llguidance, which has no wheel for musl, and which this wheel needs
for its extra `format` alone. Then come the demo model, the self-test, and pytest on TESTS. Needs root, ziglang (extra
`musl`), and of Debian musl-tools, busybox-static, dpkg-dev, autoconf, automake, libtool, libltdl-dev and texinfo.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from wheels import build, check, foreign  # noqa: E402 (beside this file)
from wheels.foreign import run  # noqa: E402

FOLDER = ROOT / "build" / "musl"
SOURCES, LIBRARIES, BARE, SITE, TREE = (FOLDER / name for name in ("sources", "libraries", "root", "site", "tree"))
TOOLS, PACKAGES, OUT = (FOLDER / name for name in ("tools", "packages", "wheel"))
SUITE, PYTHON = "bookworm", "3.11"
NEWER = "trixie"
"""Where musl is from: PyPI's wheels have packed relocations, which it reads since 1.2.4; with 1.2.3 numpy crashes."""
PREFIX = Path("/opt/python")
INTERPRETER = BARE / PREFIX.relative_to("/") / f"bin/python{PYTHON}"
PATCH = "debian/patches/shutdown-deadlock.diff"
"""Of Debian's patches of its Python 3.11.2, what keeps it from hanging where a `threading.local` ends with its thread
(python/cpython#102126)."""
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
PLATFORMS = ("musllinux_1_2_x86_64", "musllinux_1_1_x86_64")
WITHOUT = ("llguidance", "sentencepiece")
"""What has no wheel for musl."""
NOTHING = {"tmp": BARE / "tmp"}
LOADER = "lib/ld-musl-x86_64.so.1"
"""Which is musl's whole library, too."""
LIBC = "libc.musl-x86_64.so.1"
TARGET = "x86_64-linux-musl"
TESTS = ("tests/ml", "tests/kvcache", "tests/sample", "tests/nn", "--ignore=tests/sample/constraints")


def main() -> None:
    """Make what is missing, build, run; SystemExit says what failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=TESTS, help="what pytest runs there")
    parser.add_argument("--variants", default="", metavar="A;B", help="CPU variants of ggml, of which all are built")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheel")
    chosen = parser.parse_args()
    if not INTERPRETER.exists():
        make_python()
    make_root()
    if not SITE.exists():
        foreign.install_packages(SITE, PYTHON, PLATFORMS, without=WITHOUT)
    wheel = built(chosen.variants, chosen.out)
    check.main([str(wheel)], [BARE / LOADER])
    install(wheel)
    tests = f"python -m pytest -q -p no:cacheprovider --timeout=300 {' '.join(chosen.tests)}"
    timed("tests", {"tree": TREE, "site": SITE}, tests)


def make_python() -> None:
    """Compile Debian's Python, with zlib and libffi in it, by musl-gcc."""
    SOURCES.mkdir(parents=True, exist_ok=True)
    listed = SOURCES / "sources.list"
    targets = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", f"Release: {SUITE}"]
    mirror = subprocess.run(targets, check=True, capture_output=True, text=True).stdout.splitlines()[0]
    lines = [f"deb-src [signed-by={KEYS}] {mirror} {SUITE} main", f"deb [signed-by={KEYS}] {mirror} {NEWER} main"]
    listed.write_text("\n".join([*lines, ""]), encoding="ascii")
    lists = SOURCES / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    apt = ["apt-get", "-qq", f"-oDir::Etc::SourceList={listed}", "-oDir::Etc::SourceParts=/dev/null",
           f"-oDir::State::Lists={lists}", f"-oDir::Cache={SOURCES}/cache"]  # fmt: skip
    run(*apt, "update")
    run(*apt, "source", "--download-only", "zlib", "libffi", f"python{PYTHON}", cwd=SOURCES)
    run(*apt, "download", "musl", cwd=SOURCES)
    run("dpkg", "-x", next(SOURCES.glob("musl_*.deb")), SOURCES / "musl")
    for archive in SOURCES.glob("*.orig.tar.*"):
        run("tar", "xf", archive, cwd=SOURCES)
    zlib, libffi, python = (next(SOURCES.glob(f"{name}-*/")) for name in ("zlib", "libffi", "Python"))
    run("tar", "xf", next(SOURCES.glob(f"python{PYTHON}_*.debian.tar.*")), PATCH, cwd=python)
    run("patch", "-p1", "-i", PATCH, cwd=python)
    here = [f"--host={TARGET}", f"--build={TARGET}"]  # what musl-gcc makes runs here, by musl's loader
    static = [f"--prefix={LIBRARIES}", f"--libdir={LIBRARIES}/lib"]
    configured(zlib, "--static", *static)
    whole = ["-Wl,--whole-archive", f"{LIBRARIES}/lib/libz.a", "-Wl,--no-whole-archive", "-Wl,-soname,libz.so.1"]
    run(compiler(), "-shared", *whole, "-o", LIBRARIES / "libz.so.1")
    run("autoreconf", "-i", cwd=libffi)
    configured(libffi, *here, *static, "--disable-shared", "--disable-docs", "--disable-exec-static-tramp")
    configured(python, *here, f"--prefix={PREFIX}", "--with-ensurepip=no", root=BARE)


def configured(source: Path, *options: str, root: Path | None = None) -> None:
    """Configure, make and install one package."""
    env = {
        **os.environ, "CC": str(compiler()), "CFLAGS": "-O2 -fPIC", "CPPFLAGS": f"-I{LIBRARIES}/include",
        "LDFLAGS": f"-L{LIBRARIES}/lib", "PKG_CONFIG_LIBDIR": f"{LIBRARIES}/lib/pkgconfig",
    }  # fmt: skip
    run("./configure", *options, cwd=source, env=env)
    run("make", f"-j{os.cpu_count()}", "install", *([f"DESTDIR={root}"] if root else []), cwd=source, env=env)


def compiler() -> Path:
    """musl-gcc, but with musl's name for the system, by which modules are named and headers are looked for."""
    return program("musl-cc", f'case "$*" in *-print-multiarch) echo {TARGET};; *) exec musl-gcc "$@";; esac')


def program(name: str, text: str) -> Path:
    """A shell script."""
    path = FOLDER / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def make_root() -> None:
    """Put musl, zlib (which Pillow's wheel asks for) and busybox beside the Python."""
    for name in ("bin", "lib", "tmp", "proc", "dev", "root", "usr", "etc"):
        (BARE / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCES / "musl/usr/lib" / TARGET / "libc.so", BARE / LOADER)
    shutil.copy(LIBRARIES / "libz.so.1", BARE / "lib")
    busybox = shutil.which("busybox")
    if busybox is None:
        raise SystemExit("there is no busybox: install busybox-static")
    shutil.copy(busybox, BARE / "bin/busybox")
    run("chroot", BARE, "/bin/busybox", "--install", "-s", "/bin")
    (BARE / "bin/python").unlink(missing_ok=True)
    (BARE / "bin/python").symlink_to(PREFIX / f"bin/python{PYTHON}")


def built(variants: str, out: Path) -> Path:
    """The wheel, under the name that auditwheel gives it."""
    if not TOOLS.exists():
        run(*foreign.pip("install", PYTHON, PLATFORMS), "--target", TOOLS, "pip", *build.requirements()[:2])
    ggml = build.BUILD / "ggml"
    run(sys.executable, ROOT / "csrc/ggml/fetch.py", ROOT / "csrc/ggml/ggml.lock", ggml)
    settings = {
        "build-dir": str(FOLDER / "build"),
        "cmake.define.OLLAMA_ENGINE_PORTABLE": "ON",
        "cmake.define.OLLAMA_ENGINE_CPU_VARIANTS": variants,
        "cmake.define.OLLAMA_ENGINE_GGML_SOURCE": str(ggml),
        "cmake.define.GGML_ALL_WARNINGS": "OFF",  # ggml gives C those of the compiler for C++
        "cmake.define.Python_INCLUDE_DIR": str(BARE / PREFIX.relative_to("/") / f"include/python{PYTHON}"),
    }
    env = {
        **os.environ, "CC": "musl-gcc", "CXX": str(zig()), "PYTHONPATH": str(TOOLS),
        "SOURCE_DATE_EPOCH": build.commit_time(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    shutil.rmtree(OUT, ignore_errors=True)
    options = [f"--config-settings={key}={value}" for key, value in settings.items()]
    run(
        INTERPRETER,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        OUT,
        *options,
        ROOT,
        env=env,
    )
    wheel = next(OUT.glob("*.whl"))
    build.make_optional(wheel, *build.NO_WHEEL)
    return build.audited(wheel, out, "musllinux")


def zig() -> Path:
    """A C++ compiler as one program, as CMake wants it.

    Libraries ask for musl by the name that Alpine has, and auditwheel knows. -O2, which later options replace: for each
    level zig compiles libc++ once, a minute, and CMake's own trials name none.
    """
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise SystemExit("ziglang is not installed: make .venv/.musl")
    compiled = f'{Path(spec.origin).with_name("zig")} c++ -target {TARGET} -O2 "$@" || exit'
    made = 'for word; do [ "$before" = -o ] && made=$word; before=$word; done'
    named = f'case "$made" in *.so) patchelf --replace-needed libc.so {LIBC} "$made";; esac'
    return program("zig-c++", f"{compiled}\n{made}\n{named}")


def install(wheel: Path) -> None:
    """Install it in the root with what it depends on, run the demo model and the self-test, print the seconds.

    From a folder: this Python has no TLS, which the package index wants.
    """
    shutil.rmtree(PACKAGES, ignore_errors=True)
    run(*foreign.pip("download", PYTHON, PLATFORMS), "--dest", PACKAGES, *foreign.dependencies(without=WITHOUT))
    shutil.copy(wheel, PACKAGES)
    folders = {"packages": PACKAGES, "tools": TOOLS}
    pip = "python -m pip install --quiet --no-index --find-links . --force-reinstall"
    timed("pip install", folders, f"{pip} {wheel.name}")
    timed("run demo", NOTHING, "ollama-engine run demo Once --max-tokens 16 --seed 1")
    timed("self-test", NOTHING, "python -m ollama_engine.selftest")
    foreign.copy_tree(TREE)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(TREE, [name for name in archive.namelist() if name.endswith(".so")])


def timed(what: str, folders: dict[str, Path], command: str) -> None:
    """Run a command in the root, print its seconds."""
    start = time.perf_counter()
    foreign.run_inside(BARE, folders, f"{PREFIX}/bin:/bin", command)
    print(f"{what}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
