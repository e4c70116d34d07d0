"""What does a restart cost? The first token of a long prompt: computed, from memory, and from the prefix store.

    python bench/prefix_store.py FILE.gguf -p 8000 -t 2

Each time in a new engine, but for "memory". The file of each block is in the system's cache of pages unless `--cold`
has that dropped (as root). Then one answer is decoded alone, and beside the writing of another prompt's blocks: how
long were the gaps between its tokens?
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from ollama_engine import Engine, SamplingParams

ONE = SamplingParams(temperature=0, max_tokens=1)


def seconds_to_first(engine: Engine, prompt: list[int]) -> tuple[float, int]:
    """Seconds, and the tokens that were not computed."""
    begin = time.perf_counter()
    answer = engine.generate(prompt, ONE)
    return time.perf_counter() - begin, answer.usage.cached_tokens


def gaps(engine: Engine, n: int) -> list[float]:
    """Milliseconds between the tokens of an answer."""
    at = []
    for _ in engine.submit([100, 200, 300], SamplingParams(temperature=1, seed=1, max_tokens=n)):
        at.append(time.perf_counter())
    return [float(gap) for gap in np.diff(at) * 1e3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-p", type=int, default=8000, metavar="TOKENS", help="length of the prompt")
    parser.add_argument("-t", type=int, default=None, metavar="THREADS")
    parser.add_argument("--cold", action="store_true", help="drop the system's cache of pages before reading")
    args = parser.parse_args()
    prompt = [int(token) for token in np.random.default_rng(0).integers(100, 500, args.p)]
    with tempfile.TemporaryDirectory() as folder:

        def opened() -> Engine:
            return Engine(args.model, num_ctx=args.p + 64, parallel=2, threads=args.t, prefix_store=folder, draft="off")

        with opened() as engine:
            computed, _ = seconds_to_first(engine, prompt)
            memory, kept = seconds_to_first(engine, prompt)
            begin = time.perf_counter()
        written = time.perf_counter() - begin
        stored = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        if args.cold:
            Path("/proc/sys/vm/drop_caches").write_text("1")
        with opened() as engine:
            disk, read = seconds_to_first(engine, prompt)
        print(f"computed {computed:.3f} s, memory {memory:.3f} s ({kept} tokens), disk {disk:.3f} s ({read} tokens): "
              f"{computed / disk:.1f} times as fast; {stored / 1e6:.0f} MB, closing took {written:.2f} s")  # fmt: skip
        with opened() as engine:
            engine.generate([100], ONE)
            alone = gaps(engine, 60)
            other = [token + 1 for token in prompt[:2048]]
            engine.generate(other, ONE)
            beside = gaps(engine, 60)
            n = engine.metrics.prefix_store_written_tokens
        for name, each in (("alone", alone), (f"while {n} tokens were stored", beside)):
            print(f"gaps between tokens {name}: median {statistics.median(each):.2f}, longest {max(each):.2f} ms")


if __name__ == "__main__":
    main()
