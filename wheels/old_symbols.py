"""Libraries to link against, so that what a new machine builds runs on older ones: `old_symbols.py FOLDER`.

A program asks for a function by name and version, and the linker takes the newest version that it finds: built on glibc
2.36, a module asks for `pthread_create@GLIBC_2.34`, and loads on nothing older. Every glibc keeps old versions, too.
The libraries made here have no code: each names the symbols of this machine's libc, libm and libstdc++ in the newest
version that is no newer than GLIBC, GLIBCXX and CXXABI below. A build with
OLLAMA_ENGINE_OLD_SYMBOLS=FOLDER asks for those.

- A function that moved to libc in 2.34 is asked of the library that it came from (libpthread, libdl, librt).
- Functions that came later are not in these libraries. Those of libstdc++ are taken from libstdc++.a (as Red Hat's
  toolsets do), and `compat.c` has the few of libc that headers call in place of older ones.
- What nothing provides has no version at all, and would be noticed only on an old machine: `check.py` looks for it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GLIBC", "make"]

GLIBC = (2, 28)
"""RHEL 8, Debian 10, Ubuntu 18.10 and what came after them."""
GLIBCXX = (3, 4, 24)
CXXABI = (1, 3, 11)
LIMITS = {"GLIBC": GLIBC, "GLIBCXX": GLIBCXX, "CXXABI": CXXABI}
COMPAT = Path(__file__).with_name("compat.c")
MOVED = (2, 30)
"""From here on functions moved into libc.so.6."""
FORMER_HOMES = (
    (re.compile(r"_*(pthread|sem)_"), "libpthread.so.0"),
    (re.compile(r"dl(open|close|sym|vsym|addr1?|info|error|mopen)$"), "libdl.so.2"),
    (re.compile(r"(shm|mq|aio|lio|timer)_"), "librt.so.1"),
)
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
SECTIONS = {"OBJECT": ".bss", "TLS": '.section .tbss,"awT",@nobits'}


@dataclass(frozen=True)
class Symbol:
    """A name that a library defines: its version, its kind (FUNC, OBJECT, TLS, ...) and its bytes."""

    name: str
    version: str
    kind: str
    size: int

    def number(self) -> tuple[int, ...] | None:
        """The version's number; None where it is not one of those that are limited."""
        family, _, number = self.version.partition("_")
        return tuple(map(int, number.split("."))) if family in LIMITS and re.fullmatch(r"[\d.]+", number) else None

    def old(self) -> bool:
        """Whether an old machine has it."""
        number = self.number()
        return number is not None and number <= LIMITS[self.version.partition("_")[0]]


def main() -> None:
    make(Path(sys.argv[1]))


def make(folder: Path) -> None:
    """Make the libraries, and the linker scripts by whose names the compiler finds them."""
    folder.mkdir(parents=True, exist_ok=True)
    libraries: dict[str, dict[str, Symbol]] = {}
    for library in ("libc.so.6", "libm.so.6", "libstdc++.so.6"):
        for symbol, home in _old_symbols(library):
            libraries.setdefault(home, {})[symbol.name] = symbol
    for name, symbols in libraries.items():
        _library(folder, name, symbols)
    _run("-O2", "-fPIC", "-fvisibility=hidden", "-c", COMPAT, "-o", folder / "compat.o")
    moved = " ".join(
        str(folder / name) for name in libraries if name not in {"libc.so.6", "libm.so.6", "libstdc++.so.6"}
    )
    of_libc = f"{folder / 'libc.so.6'} AS_NEEDED ( {moved} ) {_archive(folder)} {_here('libc_nonshared.a')}"
    scripts = {
        "libc.so": f"GROUP ( {of_libc} AS_NEEDED ( {_here(LOADERS[_machine()])} ) )",
        "libm.so": f"INPUT ( {folder / 'libm.so.6'} )",
        "libstdc++.so": f"GROUP ( {folder / 'libstdc++.so.6'} {_here('libstdc++.a')} )",
        "libpthread.so": f"INPUT ( {folder / 'libpthread.so.0'} )",
        "libdl.so": f"INPUT ( {folder / 'libdl.so.2'} )",
        "librt.so": f"INPUT ( {folder / 'librt.so.1'} )",
    }
    for name, text in scripts.items():
        (folder / name).write_text(text + "\n", encoding="ascii")


def _old_symbols(library: str) -> Iterator[tuple[Symbol, str]]:
    """The newest version of each symbol that old machines have, and the library that they have it in."""
    versions: dict[str, list[Symbol]] = {}
    for symbol in _defined(_here(library)):
        versions.setdefault(symbol.name, []).append(symbol)
    for name, symbols in versions.items():
        old = [symbol for symbol in symbols if symbol.old()]
        if not old:
            continue
        newest = max(old, key=lambda symbol: symbol.number() or ())
        moved = library == "libc.so.6" and any((symbol.number() or ()) >= MOVED for symbol in symbols)
        home = next((home for pattern, home in FORMER_HOMES if moved and pattern.match(name)), library)
        yield newest, home


def _defined(path: str) -> Iterator[Symbol]:
    text = subprocess.run(["readelf", "--dyn-syms", "--wide", path], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 8 and words[0].rstrip(":").isdigit() and words[6] not in {"UND", "ABS"} and "@" in words[7]:
            name, _, version = words[7].partition("@")
            yield Symbol(name, version.lstrip("@"), words[3], int(words[2], 0))


def _library(folder: Path, name: str, symbols: dict[str, Symbol]) -> None:
    """A library without code that defines the symbols in their versions."""
    lines, versions = [], dict[str, list[str]]()
    for symbol in symbols.values():
        kind = {"OBJECT": "object", "TLS": "tls_object"}.get(symbol.kind, "function")
        lines += [SECTIONS.get(symbol.kind, ".text"), f'.globl "{symbol.name}"', f'.type "{symbol.name}", @{kind}']
        lines += [f'.size "{symbol.name}", {symbol.size}', f'"{symbol.name}":']
        lines += [f".zero {symbol.size}"] if symbol.kind in SECTIONS else []
        versions.setdefault(symbol.version, []).append(symbol.name)
    nodes = []
    for version, names in versions.items():
        quoted = " ".join(f'"{name}";' for name in names)
        nodes.append(f"{version} {{ global: {quoted} }};")
    source, script = folder / f"{name}.s", folder / f"{name}.map"
    source.write_text("\n".join(lines) + "\n", encoding="ascii")
    script.write_text("\n".join(nodes) + "\n", encoding="ascii")
    named = ("-Wl,--version-script", f"-Wl,{script}", f"-Wl,-soname,{name}")
    _run("-shared", "-nostdlib", *named, source, "-o", folder / name)


def _archive(folder: Path) -> Path:
    archive = folder / "libcompat.a"
    archive.unlink(missing_ok=True)
    subprocess.run(["ar", "rcsD", archive, folder / "compat.o"], check=True)
    return archive


def _here(name: str) -> str:
    """Where this machine's compiler has a library."""
    path = subprocess.run(
        [_compiler(), f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    if path == name:
        raise SystemExit(f"{_compiler()} has no {name}, which wheels for older Linux are linked with: install it")
    return path


def _machine() -> str:
    """What the compiler compiles for, as its names of systems begin: x86_64."""
    named = subprocess.run([_compiler(), "-dumpmachine"], check=True, capture_output=True, text=True).stdout
    return named.partition("-")[0]


def _run(*arguments: str | Path) -> None:
    subprocess.run([_compiler(), *arguments], check=True)


def _compiler() -> str:
    return os.environ.get("CC", "cc")


if __name__ == "__main__":
    main()
