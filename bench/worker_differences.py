"""How far log-probabilities on a worker are from the CPU's, and from their own with other requests beside them.

python bench/worker_differences.py [MODEL.gguf ...]    # the demo model by default
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray

from ollama_engine import Engine, SamplingParams, demo
from tests.workers import running_worker

TEXT = (
    "One day a fox went to the forest. He saw a bear and a bird, and they talked about the sun and the rain for a long "
    "time."
)
ANSWER = SamplingParams(temperature=0, max_tokens=12, logprobs=1)


def of_prompt(engine: Engine) -> NDArray[np.float64]:
    """The log-probability of each token of TEXT but the first."""
    tokens = np.array(engine.tokenize(TEXT))
    logits = engine.logits(TEXT).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    rows = np.arange(len(tokens) - 1)
    return np.asarray(logits[rows, tokens[1:]] - np.log(np.exp(logits[rows]).sum(1)))


def by_company(engine: Engine) -> float:
    """The largest change of an answer's log-probabilities where three other prompts are in the batch, too."""
    alone = engine.generate(TEXT, ANSWER, cache=False)
    beside = engine.generate([TEXT, *(f"Two foxes and {TEXT} {end}" for end in "abc")], ANSWER, cache=False)[0]
    changes = [0.0]
    for i, (first, second) in enumerate(zip(alone.logprobs or (), beside.logprobs or (), strict=False)):
        if alone.tokens[: i + 1] != beside.tokens[: i + 1]:
            break
        changes.append(abs(first.logprob - second.logprob))
    return max(changes)


def compare(path: str, address: str) -> None:
    places: dict[str, dict[str, Any]] = {"CPU": {"gpu_layers": 0}, "worker": {"devices": [address]}}
    for cache in ("f32", "f16", "q8_0"):
        found, changes = [], []
        for options in places.values():
            with Engine(path, num_ctx=512, threads=1, parallel=4, kv_cache_type=cache, **options) as engine:
                found.append(of_prompt(engine))
                changes.append(by_company(engine))
        apart = np.abs(found[0] - found[1])
        print(
            f"{Path(path).name} cache {cache:4}: worker and CPU median {np.median(apart):.4f} max {apart.max():.4f}; "
            f"alone and beside others CPU {changes[0]:.4f} worker {changes[1]:.4f}"
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_worker(Path(folder)) as worker:
        for path in sys.argv[1:] or [str(demo.path())]:
            compare(path, worker.address)


if __name__ == "__main__":
    main()
