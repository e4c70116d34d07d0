"""Cython modules to C++, all in one process: each would parse Cython's own library again, which takes two thirds of the
time.

    transpile.py OUTPUT_FOLDER SHARED NAME[:unchecked] ...

NAME is that of a module, such as ollama_engine.sample._sample, and OUTPUT_FOLDER gets ollama_engine.sample._sample.cxx.
SHARED names the module that has what all of them share. An output is made again where anything that it is made of
differs; a file beside it has the hash of that. Run it where CMakeLists.txt is.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import Cython
from Cython.Compiler.Main import CompilationOptions, compile_single

# What Python's lock would protect has locks of its own: `critical_section` of an object, which is nothing where Python
# has its lock, that of a backend, or one thread.
FREE_THREADED = "freethreading_compatible"
DIRECTIVES = {"language_level": 3, "embedsignature": True, FREE_THREADED: True}
UNCHECKED = {"boundscheck": False, "wraparound": False, "initializedcheck": False, "cdivision": True}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shared")
    parser.add_argument("modules", nargs="*")
    chosen = parser.parse_args()
    declarations = b"".join(path.read_bytes() for path in sorted(Path().glob("ollama_engine/**/*.pxd")))
    for_all = [Cython.__version__, Path(__file__).read_text(encoding="utf-8"), declarations]

    def shared_module(output: Path) -> None:
        options = ["--cplus", "-3", f"-X{FREE_THREADED}=True", f"--generate-shared={output}"]
        subprocess.run([sys.executable, "-m", "cython", *options, "--module-name", chosen.shared], check=True)

    remade(chosen.folder / f"{chosen.shared}.cxx", for_all[:2], shared_module)
    for module in chosen.modules:
        name, _, unchecked = module.partition(":")
        source = Path(*name.split(".")).with_suffix(".pyx")
        directives = DIRECTIVES | (UNCHECKED if unchecked else {})

        def transpiled(output: Path, name: str = name, source: Path = source, directives: dict = directives) -> None:
            transpile(name, source, output, chosen.shared, directives)

        remade(chosen.folder / f"{name}.cxx", [*for_all, chosen.shared, directives, source.read_bytes()], transpiled)
    return 0


def remade(output: Path, made_of: list[object], make: Callable[[Path], None]) -> None:
    """Make the output unless it is there and made of the same; write it where it differs, so that what has not changed
    is not compiled again. The hash is written last: what was interrupted is made again.
    """
    key = hashlib.sha256(repr(made_of).encode()).hexdigest()
    known = output.with_suffix(".key")
    if output.exists() and known.exists() and known.read_text(encoding="ascii") == key:
        return
    # Cython 3.3.0 writes a shared module to a .cpp file only, and ignores --module-name: the file names the module.
    fresh = output.with_suffix(".cpp")
    make(fresh)
    text = fresh.read_bytes().replace(fresh.name.encode(), output.name.encode())
    if not output.exists() or output.read_bytes() != text:
        fresh.write_bytes(text)
        os.replace(fresh, output)
    fresh.unlink(missing_ok=True)
    known.write_text(key, encoding="ascii")


def transpile(name: str, source: Path, output: Path, shared: str, directives: dict[str, object]) -> None:
    options = CompilationOptions(
        cplus=True,
        language_level=3,
        compiler_directives=directives,
        include_path=["."],
        output_file=str(output),
        shared_utility_qualified_name=shared,
    )
    if compile_single(str(source), options, full_module_name=name).num_errors:
        output.unlink(missing_ok=True)
        sys.exit(1)  # Cython has said why


if __name__ == "__main__":
    sys.exit(main())
