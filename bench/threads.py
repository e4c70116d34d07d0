"""Do threads of one Python process tokenize, constrain and sample side by side? What is done a second, in all.

    python bench/threads.py [MODEL] [--seconds 1] [--threads 1,4,16]

A text of 20 kB, the masks along an answer in JSON (its schema is compiled before), and a token of random logits: each
is begun again until the time is over. Where Python's lock is kept, more threads do no more; elsewhere the cores are the
bound. All share the tokenizer, each thread has a sampler of its own, and masks are made of one compiled schema for all
threads, and of one for each. There are no masks where llguidance is not installed.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

from ollama_engine import SamplingParams, demo
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.sample import Sampler
from ollama_engine.tokenizer import Tokenizer, from_metadata

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["foxes", "bread", "snow"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
}
ANSWER = '{"name": "Old Fox", "age": 12, "likes": ["bread", "snow"]}'
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=str(demo.path()))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement; the median of three counts")
    parser.add_argument("--threads", default="1,4,16")
    chosen = parser.parse_args()
    counts = [int(count) for count in chosen.threads.split(",")]
    with GGUFFile(chosen.model) as file:
        tokenizer = from_metadata(file.metadata)
    print("| | " + " | ".join(f"{n} threads" if n > 1 else "1 thread" for n in counts) + " |")
    print("|---" * (len(counts) + 1) + "|")
    questions = {"texts of 20 kB": texts}
    if find_spec("llguidance"):
        questions |= {"masks of one schema": masks, "masks of a schema each": own_masks}
    questions["tokens sampled"] = tokens
    for name, prepare in questions.items():
        rates = [median(per_second(prepare, tokenizer, n, chosen.seconds) for _ in range(ROUNDS)) for n in counts]
        print(f"| {name} a second | " + " | ".join(f"{rate:,.0f}" for rate in rates) + " |")


def per_second(
    prepare: Callable[[Tokenizer, int], Callable[[], int]], tokenizer: Tokenizer, n: int, seconds: float
) -> float:
    """What n threads do together, from the moment when all are ready."""
    done = [0] * n
    ready = threading.Barrier(n + 1)
    ended = threading.Event()

    def work(i: int) -> None:
        step = prepare(tokenizer, i)
        ready.wait()
        while not ended.is_set():
            done[i] += step()

    workers = [threading.Thread(target=work, args=[i]) for i in range(n)]
    for worker in workers:
        worker.start()
    ready.wait()
    begun = time.perf_counter()
    time.sleep(seconds)
    so_far, took = sum(done), time.perf_counter() - begun
    ended.set()
    for worker in workers:
        worker.join()
    return so_far / took


def texts(tokenizer: Tokenizer, i: int) -> Callable[[], int]:
    rng = random.Random(i)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(2_000)]
    text = " ".join(rng.choices(words, k=3_400))[:20_000]
    return lambda: len(tokenizer.encode(text)) > 0


@cache
def compiler_of(tokenizer: Tokenizer, i: int) -> Any:
    from ollama_engine.sample.constraints.compiler import GrammarCompiler  # noqa: PLC0415 (imports llguidance)

    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    compiler.constraint(SCHEMA)
    return compiler


def masks(tokenizer: Tokenizer, i: int) -> Callable[[], int]:
    return _masks(tokenizer, 0)


def own_masks(tokenizer: Tokenizer, i: int) -> Callable[[], int]:
    return _masks(tokenizer, i)


def _masks(tokenizer: Tokenizer, i: int) -> Callable[[], int]:
    compiler = compiler_of(tokenizer, i)
    answer = tokenizer.encode(ANSWER, add_special=False)

    def step() -> int:
        constraint = compiler.constraint(SCHEMA)
        for token in answer:
            constraint.mask()
            constraint.accept(token)
        return len(answer)

    return step


def tokens(tokenizer: Tokenizer, i: int) -> Callable[[], int]:
    sampler = Sampler(SamplingParams(seed=i), tokenizer.n_vocab)
    row = np.random.default_rng(i).normal(0, 3, tokenizer.n_vocab).astype(np.float32)
    return lambda: sampler.sample(row) >= 0


if __name__ == "__main__":
    main()
