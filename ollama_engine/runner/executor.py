"""Executor: turns a batch into logits. Builds graphs, reuses the last one while its shape holds, computes.

The worst graphs (a full prompt batch, and one token, both over the whole history) are reserved at start, so that no
step needs memory that was not there before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import ConfigError
from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache import Cache
from ollama_engine.kvcache.cells import MAX_SEQUENCES
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models import Model, ModelInputs

FloatArray = npt.NDArray[np.float32]

ShapeKey = tuple[int, int, tuple[int, ...]]
"""Tokens, rows with logits, and what of the cache shapes the graph."""


@dataclass(slots=True)
class Graph:
    """A built graph and its inputs; the cache keeps its own inputs of it."""

    key: ShapeKey
    ctx: Context
    inputs: ModelInputs
    logits: Tensor


@dataclass(slots=True)
class GraphCounts:
    """How often graphs were built anew and used again."""

    built: int = 0
    reused: int = 0


class Executor:
    """Computes batches of up to `batch_size` tokens with up to `max_outputs` rows of logits. Not thread-safe."""

    def __init__(self, backend: Backend, model: Model, cache: Cache, batch_size: int, max_outputs: int) -> None:
        # -- collaborators --
        self._backend = backend
        self._model = model
        self._cache = cache
        # -- configuration --
        self.batch_size = batch_size
        self.max_outputs = min(max_outputs, batch_size)
        # -- storage --
        self._buffer = np.empty((self.max_outputs, model.n_vocab), dtype=np.float32)
        # -- current graph --
        self._logits = self._buffer[:0]
        self._graph: Graph | None = None
        self.counts = GraphCounts()

    def reserve(self) -> None:
        """Take the memory for the largest graphs now. Raises NoMemoryError."""
        for n_tokens in (self.batch_size, 1):
            self._cache.begin_reserve(n_tokens)
            graph = self._build(self._key(n_tokens, min(n_tokens, self.max_outputs)))
            with graph.ctx:
                graph.ctx.reserve()

    def run(self, batch: Batch) -> FloatArray:
        """Logits float32 [len(batch.outputs), n_vocab]; the array is overwritten by the next run.

        Raises ContextOverflowError, with nothing changed, when the cache has no room.
        """
        self._check(batch)
        self._cache.begin(batch)
        try:
            return self._compute(batch)
        except BaseException:
            self.close()  # it may be half built or not allocated
            # The cells hold no keys and values; a sequence must not go on as if they did.
            for sequence in np.unique(batch.sequences):
                first = int(batch.positions[batch.sequences == sequence].min())
                self._cache.remove(int(sequence), first)
            raise

    def _compute(self, batch: Batch) -> FloatArray:
        graph = self._graph_for(self._key(len(batch), len(batch.outputs)))
        graph.inputs.tokens.set(batch.tokens)
        graph.inputs.positions.set(batch.positions)
        if graph.inputs.outputs is not None:
            graph.inputs.outputs.set(batch.outputs)
        self._cache.write_inputs()
        graph.ctx.compute()
        logits = self._buffer[: len(batch.outputs)]
        graph.logits.read_into(logits)
        self._logits = logits
        return logits

    @property
    def spoiled(self) -> bool:
        """Whether the latest logits hold NaN or +infinity: what led to them lies in the cache, see `Cache.scrub`."""
        return not bool((self._logits < np.inf).all())

    def _check(self, batch: Batch) -> None:
        if not 1 <= len(batch) <= self.batch_size:
            raise ConfigError(f"a batch has 1 to {self.batch_size} tokens, got {len(batch)}")
        if not 1 <= len(batch.outputs) <= self.max_outputs:
            raise ConfigError(f"a batch asks for 1 to {self.max_outputs} rows of logits, got {len(batch.outputs)}")
        _check_range("tokens", batch.tokens, self._model.n_vocab)
        _check_range("positions", batch.positions, 1 << 31)
        _check_range("sequences", batch.sequences, MAX_SEQUENCES)
        _check_range("outputs", batch.outputs, len(batch))

    def _key(self, n_tokens: int, n_outputs: int) -> ShapeKey:
        return (n_tokens, n_outputs, self._cache.shape_key)

    def _graph_for(self, key: ShapeKey) -> Graph:
        if self._graph is not None and self._graph.key == key:
            self.counts.reused += 1
            return self._graph
        self.close()
        self._graph = self._build(key)
        self._graph.ctx.alloc()
        self.counts.built += 1
        return self._graph

    def _build(self, key: ShapeKey) -> Graph:
        n_tokens, n_outputs, _ = key
        ctx = Context(self._backend)
        try:
            inputs = ModelInputs(
                tokens=ctx.input("i32", (n_tokens,), name="tokens"),
                positions=ctx.input("i32", (n_tokens,), name="positions"),
                outputs=ctx.input("i32", (n_outputs,), name="outputs") if n_outputs != n_tokens else None,
            )
            self._cache.build_inputs(ctx)
            logits = self._model.forward(inputs, self._cache)
            ctx.forward(logits)
        except BaseException:
            ctx.close()
            raise
        return Graph(key, ctx, inputs, logits)

    def close(self) -> None:
        """Drop the current graph."""
        if self._graph is not None:
            self._graph.ctx.close()
            self._graph = None


def _check_range(name: str, values: Int32Array, end: int) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= end:
        raise ConfigError(f"{name} are 0 to {end - 1}, got {low} to {high}")
