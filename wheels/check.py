"""What is in a wheel, by part: `python wheels/check.py WHEEL ...`. Exit code 1 where something is wrong.

- Every symbol that a library asks for is there: in another library of the wheel, in Python, or in a version that glibc
  or libstdc++ has. What `old_symbols.py` left without a version would fail on old machines alone. musl's symbols have
  no versions: they are looked for in its library.
- Licences, types and the packaged models are in it, sources are not, and it has no more than MOST_BYTES.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["check_contents", "main"]

MOST_BYTES = 40_000_000
NEEDED = (
    "_lib/LICENSE.ggml",
    "_lib/NOTICE.ggml",
    "py.typed",
    "ml/graph/tensor.pyi",
    "demo/demo.gguf",
    "demo/demo-vision.gguf",
    "demo/shapes.png",
    "sample/_sample.pyi",
)
LICENCES = ("LICENSE", "csrc/ggml/LICENSE", "csrc/ggml/NOTICE")
SOURCES = (".pyx", ".pxd", ".c", ".h", ".cxx")
PARTS = (
    ("ggml for one CPU", re.compile(r"_lib/libggml-cpu-.*\.so$")),
    ("ggml", re.compile(r"_lib/")),
    ("kernels", re.compile(r"ml/ops/(small_batch|paged|amx|recurrent)\..*so$|sample/_sample\..*so$")),
    ("other modules in C", re.compile(r"\.so$")),
    ("packaged models", re.compile(r"demo/.*\.(gguf|png)$")),
    ("Python", re.compile(r"\.pyi?$")),
)


def main(wheels: Sequence[str], system: Sequence[Path] = ()) -> None:
    """Check wheels and print what they hold; SystemExit says what is wrong.

    `system`: libraries whose symbols have no version, and are there where the wheel runs.
    """
    for path in map(Path, wheels):
        check_contents(path)
        missing = [*unknown_symbols(path, system)]
        size = path.stat().st_size
        if missing:
            raise SystemExit(f"{path.name} asks for symbols that nothing provides:\n  " + "\n  ".join(missing))
        if size > MOST_BYTES:
            raise SystemExit(f"{path.name} has {size:,} bytes, allowed are {MOST_BYTES:,}")
        print(f"{path.name}: {size:,} bytes")
        for part, (files, packed, whole) in parts(path).items():
            print(f"  {part:<20} {files:>4} files {packed:>12,} bytes, unpacked {whole:>12,}")


def check_contents(wheel: Path) -> None:
    """Raise SystemExit for what is missing from a wheel, or should not be in it."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [n for n in NEEDED if f"ollama_engine/{n}" not in names]
    licences = [n.partition(".dist-info/licenses/")[2] for n in names if ".dist-info/licenses/" in n]
    missing += sorted(set(LICENCES) - set(licences))
    unwanted = [n for n in names if n.endswith(SOURCES)]
    if missing or unwanted:
        raise SystemExit(f"{wheel.name}: missing {missing}, unwanted {unwanted}")


def parts(wheel: Path) -> dict[str, tuple[int, int, int]]:
    """Files, packed and unpacked bytes of each part."""
    sums = {name: (0, 0, 0) for name, _ in PARTS} | {"the rest": (0, 0, 0)}
    for entry in zipfile.ZipFile(wheel).infolist():
        part = next((name for name, pattern in PARTS if pattern.search(entry.filename)), "the rest")
        files, packed, whole = sums[part]
        sums[part] = files + 1, packed + entry.compress_size, whole + entry.file_size
    return sums


def unknown_symbols(wheel: Path, system: Sequence[Path] = ()) -> Iterator[str]:
    """Symbols that libraries ask for in no version, and that neither Python nor another library has, the wheel's or
    the system's.
    """
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        libraries = sorted(Path(folder).rglob("*.so"))
        tables = {library: [*_symbols(library)] for library in libraries}
        known = [*tables.values(), *map(_symbols, system)]
        defined = {name for table in known for name, where, _ in table if where != "UND"}
        for library, table in tables.items():
            for name, where, bind in table:
                python = name.startswith(("Py", "_Py"))
                if where == "UND" and bind != "WEAK" and "@" not in name and not python and name not in defined:
                    yield f"{library.relative_to(folder)}: {name}"


def _symbols(library: Path) -> Iterator[tuple[str, str, str]]:
    """Name, section (UND where it is asked for) and binding of each dynamic symbol."""
    command = ["readelf", "--dyn-syms", "--wide", str(library)]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        words = line.split()
        if len(words) >= 8 and words[0].rstrip(":").isdigit():
            yield words[7], words[6], words[4]


if __name__ == "__main__":
    main(sys.argv[1:])
