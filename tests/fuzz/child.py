"""One target in libFuzzer's loop: `python -m tests.fuzz.child TARGET FLAGS_OF_LIBFUZZER... CORPUS...`. See run.py."""

from __future__ import annotations

import logging
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import atheris


def main(name: str, flags: list[str]) -> None:
    logging.disable()  # texts without tokens would fill the screen
    with atheris.instrument_imports(include=["ollama_engine", "jinja2"], enable_loader_override=False):
        target = import_module(f"tests.fuzz.targets.{name}")
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.WORDS), encoding="ascii")
        seeds = Path(folder) / "seeds"
        seeds.mkdir()
        for i, seed in enumerate(target.seeds()):
            (seeds / f"{i}").write_bytes(seed)
        work = Path(folder) / "work"
        work.mkdir()
        with target.opened(work) as run:
            atheris.Setup([sys.argv[0], f"-dict={words}", *flags, str(seeds)], run)
            atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
