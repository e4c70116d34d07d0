"""How far log-probabilities on a worker are from the CPU's, and both from those of the model without rounding.

python bench/worker_differences.py [MODEL.gguf ...]    # the demo model by default

"exact" is the same model with weights, activations and cache of float32. With quantized weights activations are
rounded, too, which moves log-probabilities by much more than two kernels differ: a difference in the last bit makes
some roundings fall the other way. So results of the CPU and of the worker are two draws that lie as far from the exact
one as each other.
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
from tests.support.float_copy import write_float_copy
from tests.support.workers import running_worker

TEXT = (
    "One day a fox went to the forest. He saw a bear and a bird, and they talked about the sun and the rain for a long "
    "time."
)
ANSWER = SamplingParams(temperature=0, max_tokens=12, logprobs=1)
WAYS = (("f32", "auto"), ("f32", "off"), ("f16", "auto"), ("f16", "off"), ("q8_0", "auto"))
"""Types of the cache, and flash attention."""

Numbers = NDArray[np.float64]


def of_prompt(engine: Engine) -> Numbers:
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


def apart(first: Numbers, second: Numbers) -> str:
    found = np.abs(first - second)
    return f"{np.median(found):.5f} max {found.max():.5f}"


def compare(path: str, copy: str, address: str) -> None:
    """Print the differences. `copy`: the same model with weights of float32."""
    places: dict[str, dict[str, Any]] = {"CPU": {"gpu_layers": 0}, "worker": {"devices": [address]}}
    options: dict[str, Any] = {"num_ctx": 512, "threads": 1, "parallel": 4, "kv_cache_type": "f32"}
    exact: list[Numbers] = []
    for given in places.values():
        with Engine(copy, **{**options, **given}) as engine:
            exact.append(of_prompt(engine))
    print(f"{Path(path).name}: exact, worker and CPU {apart(*exact)}")
    for cache, flash in WAYS:
        pair, changes = [], []
        for given in places.values():
            with Engine(path, **{**options, **given, "kv_cache_type": cache, "flash_attention": flash}) as engine:
                pair.append(of_prompt(engine))
                changes.append(by_company(engine))
        print(f"  cache {cache:4} flash {flash:4}: worker and CPU {apart(*pair)}; CPU and exact "
              f"{apart(pair[0], exact[0])}; worker and exact {apart(pair[1], exact[0])}; alone and beside others CPU "
              f"{changes[0]:.5f} worker {changes[1]:.5f}")  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, running_worker(Path(folder)) as worker:
        for path in sys.argv[1:] or [str(demo.path())]:
            copy = Path(folder) / "exact.gguf"
            write_float_copy(path, copy)
            compare(path, str(copy), worker.address)


if __name__ == "__main__":
    main()
