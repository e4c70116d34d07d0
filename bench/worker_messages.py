"""What a decoding step sends to a worker and gets back: messages, round trips, bytes, for each token.

    python bench/worker_messages.py [MODEL ...]

The worker is a process of this machine. By default the demo and SmolLM2 135M, all layers on the worker; three
kinds of requests: greedy, the default sampling with penalties, and one with log-probabilities, whose rows are fetched
whole.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.real_model import real_model
from ollama_engine import Engine, SamplingParams, demo
from tests.workers import running_worker

TOKENS = 100
PROMPT = "Once upon a time"
REQUESTS = {
    "greedy": SamplingParams(temperature=0, max_tokens=TOKENS),
    "default, repeat_penalty": SamplingParams(seed=1, repeat_penalty=1.1, max_tokens=TOKENS),
    "with logprobs": SamplingParams(temperature=0, logprobs=3, max_tokens=TOKENS),
}
NAMES = ("messages", "round_trips", "graphs", "bytes_sent", "bytes_received")


def measure(path: str, address: str) -> None:
    with Engine(path, num_ctx=1024, threads=1, devices=[address]) as engine:
        worker = engine._loaded.backend.workers[0]
        for name, params in REQUESTS.items():
            engine.generate(PROMPT, params, cache=False)
            before, began = worker.counts(), time.perf_counter()
            steps = len(engine.generate(PROMPT, params, cache=False).tokens)
            seconds, after = time.perf_counter() - began, worker.counts()
            found = "  ".join(f"{key} {(after[key] - before[key]) / steps:8.1f}" for key in NAMES)
            print(f"{Path(path).name:32} {name:24} {found}  ms {1000 * seconds / steps:6.2f}", flush=True)


def main() -> None:
    paths = sys.argv[1:] or [str(path) for path in (demo.path(), real_model()) if path is not None]
    with tempfile.TemporaryDirectory() as folder, running_worker(Path(folder)) as worker:
        for path in paths:
            measure(path, worker.address)


if __name__ == "__main__":
    main()
