"""Executor: turns a batch into logits, or hidden states. Builds graphs, and keeps some for steps of the same shapes.

The worst graphs (a full prompt batch, and one token, both over the whole history) are reserved at start, so that no
step needs memory that was not there before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ollama_engine.input import Batch, FloatArray, Int32Array, MediaItem, MediaTraits
from ollama_engine.kvcache import LayerView, StepCache
from ollama_engine.kvcache.config import PIECE_ROWS
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models import MakesLogits, Model, ModelInputs, TextEncoder
from ollama_engine.runner.execute.best_logits import LEVELS, BestLogits, best_rows, level_of
from ollama_engine.runner.execute.graph import (
    Failed,
    GraphShape,
    MediaRows,
    StepGraph,
    check_batch,
    image_rows,
    input_sizes,
    make_inputs,
    media_rows,
    raise_error,
    write_inputs,
)
from ollama_engine.runner.execute.kept_graphs import MOST, MOST_BYTES, KeptGraphs, bytes_of

__all__ = ["NO_MEDIA", "Executor", "GraphCounts"]


NO_MEDIA = MediaRows()


@dataclass(slots=True)
class GraphCounts:
    """Number of graphs that were built and reused."""

    built: int = 0
    reused: int = 0


class Launch(NamedTuple):
    """A batch, its graph, and how many of the best logits each of its rows needs."""

    batch: Batch
    graph: StepGraph
    needed: Sequence[int]


class Executor:
    """Computes batches of up to `batch_size` tokens with up to `max_outputs` rows of logits. Not thread-safe.

    `run` does a whole step. Its parts: `prepare` finds cells and builds the graph, also while the step before computes;
    `launch` writes the inputs, tokens last, and starts the computation; `results` waits for its logits. With `forward`,
    such as the model's `hidden`, rows are the result of that method instead of logits. Without `traits` no media come.
    With `best_logits`, it fetches only the best logits of rows whose sampler needs no others. With `splits`, the model
    itself, `hidden` has the states that the logits are made of.
    """

    def __init__(
        self, backend: Backend, model: Model, cache: StepCache, batch_size: int, max_outputs: int, *,
        forward: Callable[[ModelInputs, LayerView], Tensor] | None = None, traits: MediaTraits | None = None,
        best_logits: BestLogits | None = None, splits: MakesLogits | None = None,
    ) -> None:  # fmt: skip
        # -- collaborators --
        self._backend = backend
        self._model = model
        self._forward = forward or model.forward
        self.splits = splits
        self._cache = cache
        self.best_logits = best_logits
        # -- configuration --
        self._n_types = model.n_token_types if isinstance(model, TextEncoder) else 0
        self.traits = MediaTraits() if traits is None else traits
        self._sizes = input_sizes(model, traits, self._n_types)
        self.batch_size = batch_size
        self.max_outputs = min(max_outputs, batch_size)
        # -- steps --
        self._prepared: Launch | None = None
        self._in_flight: Launch | None = None
        self._read_graph: StepGraph | None = None
        """That of the step whose results are read."""
        self._graphs = KeptGraphs()
        self._largest = 0
        """Host memory of the largest graph that was measured."""
        self.counts = GraphCounts()

    @property
    def flash_attention(self) -> bool:
        """Whether attention is flash attention; otherwise two products."""
        return self._cache.flash_attention

    @property
    def threads(self) -> int:
        """How many CPU threads compute now; fewer than were asked for while the machine is busy."""
        return self._backend.threads_in_use

    def reserve(self, n_decoding: int = 1) -> None:
        """Take the memory for the largest graphs now: a full batch, and a token for each of `n_decoding` sequences.

        Raises NoMemoryError.
        """
        # Smaller graphs may take another way to attention, with other memory.
        few = min(PIECE_ROWS, self.batch_size)
        largest = max(self.batch_size, self.traits.largest_group)
        for n_tokens in dict.fromkeys((largest, few, min(n_decoding, self.batch_size), 1)):
            self.reserve_batch(n_tokens)

    def reserve_batch(self, n_tokens: int) -> None:
        """Take the memory for the graphs of a batch of as many tokens, over the whole history. Raises NoMemoryError."""
        for ctx in self._worst_graphs(n_tokens):
            ctx.reserve()

    def measure_batch(self, n_tokens: int) -> dict[str, int]:
        """Bytes that the graphs of a batch of as many tokens need, {device name: bytes}. Takes no memory."""
        most: dict[str, int] = {}
        for ctx in self._worst_graphs(n_tokens):
            most = {device: max(nbytes, most.get(device, 0)) for device, nbytes in ctx.measure().items()}
        return most

    @property
    def kept_bytes(self) -> int:
        """Most host memory of graphs that are kept; known once one was measured or reserved."""
        return min(MOST_BYTES, MOST * self._largest)

    def _worst_graphs(self, n_tokens: int) -> Iterator[Context]:
        n_embedded = n_tokens if self._sizes.embedded else 0
        # All rows but one: picking rows takes more memory than returning all.
        n_outputs = min(n_tokens - 1 or 1, self.max_outputs)
        n_images = min(n_tokens, self.traits.groups_per_batch or 1)
        for _ in self._cache.worst_cases(n_tokens):
            n_best = LEVELS[-1] if self.best_logits is not None else 0
            shape = self._shape(n_tokens, n_outputs, n_embedded, n_images * self._sizes.image_rows, n_best)
            with self._build(shape).ctx as ctx:
                self._largest = max(self._largest, bytes_of(ctx))
                yield ctx

    def run(self, batch: Batch) -> FloatArray:
        """Logits float32 [len(batch.outputs), n_vocab].

        Raises ConfigError for a batch out of range, and ContextOverflowError when the cache has no room, with nothing
        changed.
        """
        largest = max(self.batch_size, self.traits.largest_group)
        check_batch(batch, largest, self.max_outputs, self._model.n_input_ids, self._n_types)
        media = self.media_rows(batch, raise_error)
        self.prepare(batch)
        self.launch(batch.tokens, media)
        with self.results() as logits:
            return logits.copy()

    def prepare(self, batch: Batch, needed: Sequence[int] = ()) -> None:
        """Find cells for a batch, and build or reuse a graph. Token ids may still be unknown; a step may be in flight.

        A group of inputs larger than `batch_size` is one batch. `needed`: how many of its best logits each of the
        batch's outputs needs, 0 for all; empty where all need all. Raises as `run` does, with nothing changed.
        """
        assert self._prepared is None, "one batch is prepared at a time"
        self._cache.begin(batch)
        n_image_rows = image_rows(batch.media, self._sizes)
        n_embedded = batch.n_embedded if batch.media else 0
        n_best = level_of(needed) if self.best_logits is not None else 0
        shape = self._shape(len(batch), len(batch.outputs), n_embedded, n_image_rows, n_best)
        try:
            graph = self._graphs.find(shape)
            if graph is None:
                graph = self._build(shape)
                self._graphs.add(graph, None if self._in_flight is None else self._in_flight.graph)
        except BaseException:
            self._cache.roll_back(batch)
            raise
        self._prepared = Launch(batch, graph, needed)

    def takes(self, item: MediaItem) -> bool:
        """Whether the item's shapes, as far as it states them, fit the model's graphs."""
        kind = self._sizes.image_rows > 0 if item.cross_attention else self._sizes.embedded
        axes = item.positions is None or item.positions.shape == (self.traits.position_axes, item.n_inputs)
        beside = item.n_inputs == 1 and 1 <= (item.n_rows or 1) <= self._sizes.image_rows
        return kind and axes and (beside or not item.cross_attention)

    def media_rows(self, batch: Batch, failed: Failed) -> MediaRows:
        """The media rows for `launch`. Calls `failed` for an item that cannot be computed."""
        return media_rows(batch.media, self._sizes, failed)

    def launch(self, tokens: Int32Array, media: MediaRows = NO_MEDIA) -> None:
        """Start to compute the prepared batch with these token ids and embeddings.

        The step before must have ended.
        """
        assert self._in_flight is None, "one step computes at a time"
        assert self._prepared is not None, "a batch is prepared before it is launched"
        launch, self._prepared = self._prepared, None
        batch, graph = launch.batch, launch.graph
        try:
            self._start(batch, graph, tokens, media)
        except BaseException:
            self._graphs.drop(graph)
            self._cache.roll_back(batch)
            raise
        self._in_flight = launch

    def _start(self, batch: Batch, graph: StepGraph, tokens: Int32Array, media: MediaRows) -> None:
        self.counts.built += not graph.used
        self.counts.reused += graph.used
        graph.reused, graph.used = graph.used, True
        graph.ctx.alloc()  # does little for a graph that had memory before
        write_inputs(graph.inputs, batch, tokens, media)
        graph.of_cache.write()
        self._compute(graph)

    def _compute(self, graph: StepGraph) -> None:
        graph.ctx.launch()

    def _finish(self, graph: StepGraph) -> None:
        graph.ctx.wait()

    @contextmanager
    def _read(self, graph: StepGraph, needed: Sequence[int]) -> Iterator[FloatArray]:
        if graph.best is not None:
            assert graph.logits is not None, "the best are those of logits"
            assert self.best_logits is not None, "the graph was built with it"
            with self.best_logits.read(graph.ctx, graph.logits, graph.best, needed) as rows:
                yield rows
            return
        if graph.logits is None:
            yield np.empty((0, self._model.n_vocab), dtype=np.float32)
            return
        with graph.logits.mapped() as rows:
            yield rows.reshape(-1, graph.logits.dim(0))

    @contextmanager
    def results(self) -> Iterator[FloatArray]:
        """Wait for the step in flight. Its logits, float32 [len(batch.outputs), n_vocab], are valid within the block.

        Raises ComputeError; the cache then does not hold the step's tokens.
        """
        assert self._in_flight is not None, "a step is launched before it is waited for"
        (batch, graph, needed), self._in_flight = self._in_flight, None
        try:
            self._finish(graph)
        except BaseException:
            self._graphs.drop(graph)
            self._cache.roll_back(batch)
            raise
        self._read_graph = graph
        try:
            with self._read(graph, needed) as logits:
                yield logits
        finally:
            self._read_graph = None

    def hidden(self, begin: int = 0, end: int | None = None) -> FloatArray:
        """What the logits within a block of `results` are made of, float32 [n, n_embd]: a copy of rows [begin, end).

        There are `hidden_rows` of them.
        """
        tensor = self._hidden
        rows = np.empty(((self.hidden_rows if end is None else end) - begin, tensor.dim(0)), np.float32)
        tensor.read_part(begin * rows.strides[0], rows)
        return rows

    @property
    def hidden_rows(self) -> int:
        """Rows of `hidden`: one for each of the batch's outputs, or for each of its rows where `splits` gives those."""
        return self._hidden.dim(1)

    @property
    def _hidden(self) -> Tensor:
        assert self._read_graph is not None, "within a block of results"
        assert self._read_graph.hidden is not None, "the executor keeps them, and the step has outputs"
        return self._read_graph.hidden

    def scrap(self) -> None:
        """Drop the prepared batch and free its cells."""
        if self._prepared is None:
            return
        batch, self._prepared = self._prepared.batch, None
        self._cache.roll_back(batch)

    def _shape(self, n_tokens: int, n_outputs: int, n_embedded: int, n_image_rows: int, n_best: int) -> GraphShape:
        return GraphShape(n_tokens, n_outputs, n_embedded, n_image_rows, n_best, self._cache.shape_key)

    def _build(self, shape: GraphShape) -> StepGraph:
        ctx = Context(self._backend)
        try:
            inputs = make_inputs(ctx, shape, self._sizes)
            of_cache = self._cache.build_inputs(ctx)
            hidden: Tensor | None = None
            if self.splits is None or not shape.n_outputs:
                logits = self._forward(inputs, self._cache)
            else:
                hidden = self.splits.hidden(inputs, self._cache)
                ctx.forward(hidden)
                logits = self.splits.logits(hidden)
            best = best_rows(logits, shape.n_best) if shape.n_best else None
            # Written also where a model reads none.
            ctx.expand(*(written for written in (inputs.positions, inputs.embedding_rows) if written is not None))
            if shape.n_outputs:
                ctx.forward(logits)
                if best is not None:
                    ctx.forward(best)
            else:
                # Only the tensors that the cache was given are computed; what its rows see is written, but not read.
                ctx.expand(*of_cache.seen)
        except BaseException:
            ctx.close()
            raise
        return StepGraph(shape, ctx, inputs, of_cache, logits if shape.n_outputs else None, hidden, best)

    def close(self) -> None:
        """Free the graphs, after the step in flight."""
        if self._in_flight is not None:
            self._in_flight.graph.ctx.abandon()
            self._in_flight = None
        self._prepared = None
        self._graphs.close()
