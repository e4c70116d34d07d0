"""Damages the inputs of a fuzz target at random: `python -m tests.fuzz.mutants TARGET SEED COUNT`, without coverage.

Prints a summary as JSON. The number of the mutant is in the file `.fuzz/TARGET-mutant` before it is run, so that a
crash names the culprit.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def inputs_of(name: str) -> list[bytes]:
    """The seeds of a target and its corpus."""
    kept = sorted((CORPUS / name).iterdir())
    return [*import_module(f"tests.fuzz.targets.{name}").seeds(), *(path.read_bytes() for path in kept)]


def mutants(inputs: Sequence[bytes], words: Sequence[bytes], rng: random.Random, count: int) -> Iterator[bytes]:
    """`count` inputs, each with one to four places changed, of which half lie in the first 400 bytes."""
    for _ in range(count):
        data = bytearray(rng.choice(inputs))
        for _ in range(rng.choice((1, 1, 2, 4))):
            at = rng.randrange(1 + min(len(data), rng.choice((400, len(data)))))
            kind = rng.random()
            if kind < 0.3 and at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            else:
                data[at : at + rng.choice((0, 1, 4))] = rng.choice((b"", rng.randbytes(1), rng.choice(words)))
        if rng.random() < 0.1:
            del data[rng.randrange(len(data) + 1) :]
        yield bytes(data)


def main(name: str, seed: int, count: int) -> None:
    logging.disable()
    target = import_module(f"tests.fuzz.targets.{name}")
    mark = Path(__file__).parents[2] / ".fuzz" / f"{name}-mutant"
    mark.parent.mkdir(exist_ok=True)
    taken, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder, target.opened(Path(folder)) as run, mark.open("wb", 0) as said:
        for number, data in enumerate(mutants(inputs_of(name), target.WORDS, random.Random(seed), count)):
            said.seek(0)
            said.write(b"%d\n" % number)
            try:
                taken += run(data)
            except Exception:
                (mark.parent / f"{name}-found-{seed}-{number}").write_bytes(data)
                raise
    json.dump({"target": name, "seed": seed, "mutants": count, "taken": taken, "refused": count - taken,
               "seconds": round(time.monotonic() - begin)}, sys.stdout)  # fmt: skip
    print()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
