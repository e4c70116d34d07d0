"""How fast is decoding with a schema beside decoding without one?

    python bench/make_model.py llama-1b q4_k_m /tmp/llama-1b.gguf
    python bench/constrained.py /tmp/llama-1b.gguf --streams 1 8 --rounds 5

Both take turns, so that whatever else the machine does slows both down; the ratio is that of each pair, and the median
of all is told. "one by one" computes forced tokens like others, one in each step. Answers have a fixed number of
tokens. A random model writes random texts: they are valid, and that is all a mask needs to be worked for.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from ollama_engine import Engine, SamplingParams
from ollama_engine.runner.core.steered_rows import SteeredRows

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "email": {"type": "string", "maxLength": 40},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 24}, "minItems": 1, "maxItems": 4},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "email", "tags", "active"],
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 1000}
PROMPT = list(range(5, 37))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    with Engine(args.model, num_ctx=512, parallel=max(args.streams), threads=args.threads) as engine:
        for streams in args.streams:
            measure(engine, streams, args.tokens, args.rounds)


def measure(engine: Engine, streams: int, tokens: int, rounds: int) -> None:
    """Print tokens/s of each kind, and the ratios."""
    kinds: dict[str, dict[str, Any]] = {"free": {}, "schema": {"format": PEOPLE}, "one by one": {"format": PEOPLE}}
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    works: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds + 1):
        for kind, options in kinds.items():
            slow = patch.object(SteeredRows, "_take_forced", lambda rows: False) if kind == "one by one" else None
            with slow or nullcontext():
                speed, work = run(engine, streams, tokens, number, options)
            if number:  # the first warms up
                speeds[kind].append(speed)
                works[kind].append(work)
    ratios = {
        kind: median(a / b for a, b in zip(speeds[kind], speeds["free"], strict=True))
        for kind in kinds
        if kind != "free"
    }
    speed_texts = ", ".join(
        f"{kind} {median(each):.1f} tokens/s ({median(works[kind]):.1f} ms of processors a token)"
        for kind, each in speeds.items()
    )
    ratio_texts = ", ".join(f"{kind} / free = {ratio:.3f}" for kind, ratio in ratios.items())
    print(f"{streams} streams: {speed_texts}; {ratio_texts}")


def run(engine: Engine, streams: int, tokens: int, seed: int, options: dict[str, Any]) -> tuple[float, float]:
    """Tokens/s of all streams together, prompts left out; milliseconds of all processors for each token."""
    never = dict.fromkeys(engine._open().tokenizer.eog_ids, float("-inf"))
    requests = [
        engine.submit(
            [*PROMPT, i],
            SamplingParams(max_tokens=tokens, seed=100 * seed + i, top_k=40, logit_bias=never),
            cache=False,
            **options,
        )
        for i in range(streams)
    ]
    for request in requests:
        next(request)
    began, began_cpu = time.perf_counter(), time.process_time()
    answers = [request.result() for request in requests]
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    assert all(answer.finish_reason == "length" for answer in answers)
    n = streams * (tokens - 1)
    return n / seconds, 1000 * cpu / n


if __name__ == "__main__":
    main()
