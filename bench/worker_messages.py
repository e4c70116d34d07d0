"""Counts what a decoding step sends to a worker and gets back: messages, round trips, bytes, for each token.

    python bench/worker_messages.py [MODEL ...]

The worker is a process of this machine. By default the demo and SmolLM2 135M, all layers on the worker; three
kinds of requests: greedy, the default sampling with penalties, and one with log-probabilities, whose rows are fetched
whole.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.real_model import real_model
from ollama_engine import Engine, SamplingParams, demo
from tests.support.workers import running_worker

SHORT, LONG = 30, 130
"""Lengths of two answers, whose difference is what decoding costs: each sends the graphs of prompt and answer."""
PROMPT = "Once upon a time"
REQUESTS = {
    "greedy": SamplingParams(temperature=0),
    "default, repeat_penalty": SamplingParams(seed=1, repeat_penalty=1.1),
    "log-probabilities": SamplingParams(temperature=0, logprobs=3),
}
NAMES = ("messages", "round_trips", "graphs", "bytes_sent", "bytes_received")


def measure(path: str, address: str) -> None:
    with Engine(path, num_ctx=1024, threads=1, devices=[address]) as engine:
        worker = engine._loaded.backend.workers[0]
        for name, params in REQUESTS.items():
            counts = []
            for length in (SHORT, SHORT, LONG):  # the first takes memory
                before = worker.counts()
                answer = engine.generate(PROMPT, replace(params, max_tokens=length), cache=False)
                after = worker.counts()
                counts.append([len(answer.tokens), *(after[key] - before[key] for key in NAMES)])
            (n, *few), (n_more, *many) = counts[1:]
            each = [(more - less) / (n_more - n) for less, more in zip(few, many, strict=True)]
            shown = "  ".join(f"{key} {value:9.1f}" for key, value in zip(NAMES, each, strict=True))
            print(f"{Path(path).name:32} {name:24} {shown}", flush=True)


def main() -> None:
    paths = sys.argv[1:] or [str(path) for path in (demo.path(), real_model()) if path is not None]
    with tempfile.TemporaryDirectory() as folder, running_worker(Path(folder)) as worker:
        for path in paths:
            measure(path, worker.address)


if __name__ == "__main__":
    main()
