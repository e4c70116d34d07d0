"""Tiny files of every architecture that writes, for the contract tests: cases of `architectures` with `contract` set.

The first variant of each architecture holds nothing optional: every tensor of it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.architectures import ARCHITECTURES
from ollama_engine.config import EngineConfig
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import Batch
from ollama_engine.kvcache import CacheConfig, CausalCache
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import architectures, model_class
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.loading import Loaded, load
from tests.models import families
from tests.models.architectures import cases_of
from tests.models.families import Family
from tests.support.tiny import write_tiny_llama

N_CTX = 256
WRITERS = [name for name in architectures() if not {"n_token_types", "n_image_embd"} & set(dir(model_class(name)))]
"""Encoders have tests of their own, in test_encoders and test_image_encoders."""
CPU: dict[str, Any] = {"threads": 1, "gpu_layers": 0}


@dataclass(frozen=True)
class Variant:
    """`write(path, **fields)` makes the file; `fields` are its settings, `wide` those that make heads of 32 or more."""

    architecture: str
    name: str
    write: Callable[..., Any]
    fields: Mapping[str, Any] = field(default_factory=dict)
    wide: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.architecture}-{self.name}"

    def file(self, folder: Path, **more: Any) -> str:
        path = folder / f"{self}.gguf"
        self.write(path, **{**self.fields, **more})
        return str(path)


def _llama(name: str, **fields: Any) -> Variant:
    return Variant("llama", name, write_tiny_llama, {"n_ctx": N_CTX, **fields}, {"head_dim": 32})


def _family(architecture: str, case: Family) -> Variant:
    """Text parts only."""

    def write(path: Path) -> None:
        families.converted(case, path.parent, vision=False).rename(path)

    return Variant(architecture, case.name, write)


def _families(architecture: str) -> Iterator[Variant]:
    for case in cases_of(architecture):
        if isinstance(case, Family) and case.contract:
            yield _family(architecture, case)


VARIANTS = (
    _llama("minimal", tied=True, seed=21),
    _llama("everything", biases=True, rope_freqs=True, head_dim=32, n_layer=3, seed=22),
    _llama("window", sliding_window=24, seed=23),
    _llama("experts", n_expert=4, n_expert_used=2, seed=24),
    *(variant for row in ARCHITECTURES if row.model is not None for variant in _families(row.name)),
)

QUICK_VARIANTS = ("llama-minimal", "llama-experts", "gemma3-gemma3", "gpt-oss-gpt-oss")
"""Two norms or four, a window or none, one feed-forward or experts, sinks: those whose graphs differ most."""

REPACKABLE = (
    _llama("q4_0", dtype="q4_0", n_embd=64, n_ff=96, seed=25),
    _llama("q4_K", dtype="q4_K", n_embd=256, n_ff=256, n_layer=1, seed=26),
    _llama("experts-q4_0", dtype="q4_0", n_expert=4, n_expert_used=2, seed=27),
    # There are no kernels of our own for this type, so that every CPU with a repacked layout repacks it.
    _llama("iq4_nl", dtype="iq4_nl", n_embd=64, n_ff=96, seed=28),
    _llama("experts-iq4_nl", dtype="iq4_nl", n_expert=4, n_expert_used=2, seed=29),
)


def minimal(architecture: str) -> Variant:
    return next(v for v in VARIANTS if v.architecture == architecture)


@contextmanager
def loaded(path: str, **options: Any) -> Iterator[Loaded]:
    """All parts of a model, without an Engine around them."""
    config = EngineConfig(**{"num_ctx": N_CTX, "parallel": 2, "kv_cache_type": "f32", **CPU, **options})
    parts = load(path, config)
    try:
        yield parts
    finally:
        parts.close()


def refuses(architecture: str, folder: Path, bad: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    """Its smallest file with each of these changes of keys (None: without it) raises an error with this text."""
    model = model_class(architecture)
    with (
        GGUFFile(minimal(architecture).file(folder)) as gguf,
        Backend(BackendParams(threads=1, gpu_layers=0)) as backend,
        Weights(backend, gguf) as weights,
    ):
        weights.load()
        for changes, message in bad:
            changed = {**gguf.metadata, **{f"{architecture}.{key}": value for key, value in changes.items()}}
            metadata = Metadata({key: value for key, value in changed.items() if value is not None})
            with pytest.raises(ModelFormatError, match=re.escape(message)):
                model(metadata, weights)


@contextmanager
def executor(path: str, *, repack: bool) -> Iterator[tuple[Executor, Weights]]:
    """An executor over weights with or without repacked copies."""
    with ExitStack() as stack:
        gguf = stack.enter_context(GGUFFile(path))
        backend = stack.enter_context(Backend(BackendParams(threads=1, gpu_layers=0)))
        weights = stack.enter_context(Weights(backend, gguf, repack=repack))
        weights.load()
        weights.repack()
        model = model_class(gguf.architecture)(Metadata(gguf.metadata), weights)
        layers = model.cache_layers
        cache = CausalCache(
            backend, layers, [0] * len(layers), 2 * N_CTX, CacheConfig(dtype="f32", flash_attention=True)
        )
        runner = Executor(backend, model, cache, 64, 32)
        stack.callback(runner.close)
        yield runner, weights


def prompt(n: int, n_vocab: int = 320, seed: int = 0) -> list[int]:
    """Ordinary tokens of the tiny vocabulary."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, n_vocab - 3, size=n)]


def rows(runner: Executor, ids: list[int], size: int, *, sequence: int = 0, last: int = 32) -> NDArray[np.float32]:
    """Logits of the last rows of a prompt that is computed in batches of `size`, [last, n_vocab]."""
    pieces = []
    for begin in range(0, len(ids), size):
        piece = ids[begin : begin + size]
        outputs = [i for i in range(len(piece)) if begin + i >= len(ids) - last] or [len(piece) - 1]
        logits = runner.run(Batch.of(piece, begin, sequence, outputs)).copy()
        if begin + len(piece) > len(ids) - last:
            pieces.append(logits)
    return np.concatenate(pieces)[-last:]
