"""The sampler, operations of one element, and the store of models."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ollama_engine import demo
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.sample import Sampler, SamplingParams, sampler_instructions
from ollama_engine.selftest.check import Check, Floats, close, equal, same_bits
from ollama_engine.selftest.kernels import computed, noise, two_threads
from ollama_engine.store.create import Recipe, create
from ollama_engine.store.model_store import ModelStore
from ollama_engine.store.names import ModelName
from ollama_engine.store.sources import SourceFile

__all__ = ["part_checks"]

VOCABULARY = 32_003
SAMPLING = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.8, top_k=40, top_p=0.9, seed=1),
    SamplingParams(temperature=1.5, top_k=0, min_p=0.01, seed=2),
    SamplingParams(temperature=1.0, top_k=0, top_p=0.95, typical_p=0.9, repeat_penalty=1.1, seed=3),
    SamplingParams(temperature=1.0, mirostat=2, seed=4),
)


def part_checks() -> Iterator[Check]:
    """Checks of the sampler, of pointwise kernels, and of the store."""
    yield Check("sampler", _sampler)
    yield Check("soft cap and GELU", _pointwise)
    yield Check("store", _store)


def _sampler() -> str:
    """Tokens, and what each could have been, of every instruction set; the greedy one is the largest."""
    rows = 4 * noise(12, VOCABULARY)

    def results() -> Iterator[tuple[str, Floats]]:
        for name in sampler_instructions():
            numbers: list[float] = []
            for params in SAMPLING:
                sampler = Sampler(params, VOCABULARY, name)
                for row in rows:
                    token = sampler.sample(row)
                    sampler.accept(token)
                    numbers.append(token)
                numbers += [number for pair in sorted(sampler.candidates(rows[0]).items()) for number in pair]
            yield name, np.array(numbers, np.float32)

    largest = rows.argmax(axis=1).tolist()
    found = list(results())
    equal("greedy tokens", found[0][1][: len(rows)].astype(int).tolist(), largest)
    return same_bits(found)


def _pointwise() -> str:
    x = 8 * noise(7, 1000)
    with two_threads() as backend:
        with Context(backend) as ctx:
            capped = computed(ctx, ops.soft_cap(ctx.from_floats(x), 30.0))
        with Context(backend) as ctx:
            gelu = computed(ctx, ops.gelu_exact(ctx.from_floats(x)))
    wide = x.astype(np.float64)
    close("soft cap", capped, 30 * np.tanh(wide / 30), 1e-6)
    close("GELU", gelu, wide / 2 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))), 1e-5)
    return "as numpy"


def _store() -> str:
    """A model is created, found under its name with every byte, and deleted."""
    with tempfile.TemporaryDirectory() as folder:
        store, name = ModelStore(folder), ModelName.parse("selftest")
        source = SourceFile("demo.gguf", demo.path())
        create(store, name, Recipe(files=[source], system="You tell stories."), lambda progress: None)
        model = store.find(name)
        equal("models", [entry.name.short for entry in store.entries()], [name.short])
        equal("system prompt", model.system, "You tell stories.")
        equal("bytes", Path(model.model_path).read_bytes(), demo.path().read_bytes())
        store.delete(name)
        equal("what is left", store.entries(), [])
    return "created, found, deleted"
