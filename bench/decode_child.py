"""An engine that stays loaded and decodes as many tokens as each line of its input asks for: ours, or llama.cpp.

    .venv/bin/python bench/decode_child.py ours MODEL.gguf -t 2      # then type 16, and Enter

Prints a line of JSON for each: seconds, and the number of threads. Every turn begins with an empty context.
`peer_child.py --turns` is the same for ik_llama.cpp. `peer_decode.py` runs several of them in turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench import peer_llama
from bench.peer_child import serve_turns, token_ids

MOST = 256
"""Tokens of a turn."""
SETTLING = 2.0
"""Seconds for which a turn of ours begins anew at most until all threads compute: where the machine looks busy, the
engine gives way, which its peers never do."""

Decode = Callable[[int], tuple[float, int]]
"""Decode so many tokens from an empty context; seconds, and the number of threads that computed."""


@contextmanager
def ours(model: str, threads: int) -> Iterator[Decode]:
    from ollama_engine.config import EngineConfig  # noqa: PLC0415 (the peer's process does not load it)
    from ollama_engine.evaluate.measure import decode_seconds, random_tokens  # noqa: PLC0415
    from ollama_engine.runner.load.loading import load  # noqa: PLC0415

    loaded = load(model, EngineConfig(num_ctx=MOST, threads=threads))
    tokens, backend = random_tokens(loaded.model.n_vocab, 1, MOST), loaded.backend

    def decode(n: int) -> tuple[float, int]:
        end = time.monotonic() + SETTLING
        used = 0
        while used < backend.threads and time.monotonic() < end:
            seconds, used = decode_seconds(loaded.executor, loaded.cache, tokens[:, :n]), backend.threads_in_use
        return seconds, used

    try:
        yield decode
    finally:
        loaded.close()


@contextmanager
def llama_cpp(model: str, threads: int) -> Iterator[Decode]:
    with tempfile.TemporaryDirectory() as folder:
        library = peer_llama.find(Path(folder))
        if library is None:
            sys.exit(peer_llama.MISSING)
        with library.model(model) as weights, library.context(weights, MOST, MOST, threads) as context:

            def decode(n: int) -> tuple[float, int]:
                library.clear(context)
                began = time.perf_counter()
                for token in token_ids(n, 1):
                    library.decode(context, token)
                return time.perf_counter() - began, threads

            yield decode


ENGINES = {"ours": ours, "llama.cpp": llama_cpp}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("-t", dest="threads", type=int, default=2)
    asked = parser.parse_args()
    with ENGINES[asked.engine](asked.model, asked.threads) as decode:
        serve_turns(decode)


if __name__ == "__main__":
    main()
