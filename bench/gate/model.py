"""A whole model: prompts and decoding of one file, with the engine's kernels and with ggml's alone, in one process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from bench.gate.verdict import OURS, Group, Measured
from bench.products import by_turns
from bench.real_model import real_model
from bench.targets import floor
from ollama_engine.config import EngineConfig
from ollama_engine.evaluate.measure import decode_seconds, prefill_seconds, random_tokens
from ollama_engine.ml.weights.kernel_choice import BY_TABLE, GGML
from ollama_engine.runner.load.loading import Loaded, load

PROMPT, ANSWER = 256, 32
PARTS: Mapping[str, tuple[Callable[..., float], int, int]] = {
    "a prompt": (prefill_seconds, 1, PROMPT),
    "decoding": (decode_seconds, 1, ANSWER),
    "decoding of 8 streams": (decode_seconds, 8, ANSWER // 4),
}
"""(what is measured, streams, tokens of each)"""


def group(given: Path | None) -> Group:
    """Rows of SmolLM2, or of the file that is given, with all threads."""
    names = {f"model, {part}": part for part in PARTS}
    config = EngineConfig(num_ctx=2 * PROMPT, parallel=8, gpu_layers=0)

    def measure(chosen: Collection[str]) -> Iterator[tuple[str, Measured]]:
        file = given or real_model()
        if file is None:
            raise SystemExit("gate: SmolLM2 cannot be downloaded; --model FILE or SMOLLM2=FILE names a file of yours")
        with closing(load(file, config)) as ours, closing(load(file, config, kernels=GGML)) as ggml:
            for name in chosen:
                sides = {side: lambda part=names[name], loaded=loaded: seconds(part, loaded)
                         for side, loaded in ((OURS, ours), ("ggml", ggml))}  # fmt: skip
                yield name, Measured(by_turns(sides))

    return Group("model", {name: floor(part, ours=bool(BY_TABLE.borders)) for name, part in names.items()}, measure)


def seconds(part: str, loaded: Loaded) -> float:
    """For one token."""
    measure, streams, n = PARTS[part]
    return measure(loaded.executor, loaded.cache, random_tokens(loaded.model.n_vocab, streams, n)) / n
