"""Moves keys to other positions (rotating them, as RoPE does) and to other cells, by graphs of bounded size.

One graph reads up to `PIECE` cells of every layer, rotates the keys, and writes them to their targets. All rows of a
layer are read before the first is written, and no target of one graph is a source of a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from ollama_engine.kvcache.moves import Moves
from ollama_engine.kvcache.rotation import rotated
from ollama_engine.kvcache.store import CellIndices, KeyValueStore
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

PIECE = 256
"""Cells that one graph moves."""

ShiftKeys = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, keys f32 [key_dim, kv_heads, n], deltas i32 [n]) -> the keys, rotated to their positions plus deltas."""


@dataclass(slots=True)
class _Graph:
    ctx: Context
    sources: CellIndices
    targets: CellIndices
    deltas: Tensor
    values: bool
    """Whether values are copied too: only where tokens change their cells."""
    turns: bool = False
    """Whether the keys of any layer are rotated; layers without positional encoding keep theirs."""

    def run(self, moves: Moves, delta: int) -> None:
        if not self.turns and not self.values:
            return
        self.ctx.alloc()
        self.sources.set(moves.sources, values=self.values)
        self.targets.set(moves.targets, values=self.values)
        if self.turns:
            self.deltas.set(np.full(len(moves.sources), delta, dtype=np.int32))
        self.ctx.compute()


def _cut(moves: Moves) -> Iterator[Moves]:
    for begin in range(0, len(moves.sources), PIECE):
        yield Moves(*(cells[begin : begin + PIECE] for cells in moves))


class Mover:
    """Moves cells of one store. Takes the backend's memory for graphs, so other allocated graphs lose theirs."""

    def __init__(self, store: KeyValueStore, shift_keys: ShiftKeys) -> None:
        self._store = store
        self._shift_keys = shift_keys

    def reserve(self) -> None:
        """Take the memory for the largest graph now. Raises NoMemoryError."""
        with closing(self._build(min(PIECE, self._store.n_cells), values=True).ctx) as ctx:
            ctx.reserve()

    def rotate(self, moves: Moves, delta: int) -> None:
        """Move tokens, and rotate their keys by `delta` positions. Tokens that keep their cell keep their values."""
        stay = moves.sources == moves.targets
        for chosen, values in ((stay, False), (~stay, True)):
            for piece, graph in self._pieces(Moves(moves.sources[chosen], moves.targets[chosen]), values):
                graph.run(piece, delta)

    def _pieces(self, moves: Moves, values: bool) -> Iterator[tuple[Moves, _Graph]]:
        graph: _Graph | None = None
        try:
            for piece in _cut(moves):
                if graph is None or graph.sources.n != len(piece.sources):
                    if graph is not None:
                        graph.ctx.close()
                    graph = self._build(len(piece.sources), values)
                yield piece, graph
        finally:
            if graph is not None:
                graph.ctx.close()

    def _build(self, n: int, values: bool) -> _Graph:
        store, ctx = self._store, Context(self._store.backend)
        try:
            graph = _Graph(
                ctx,
                CellIndices(ctx, store, n, "i32", "sources"),
                CellIndices(ctx, store, n, "i64", "targets"),
                ctx.input("i32", (n,), name="deltas"),
                values,
            )
            for layer in range(len(store.layers)):
                self._move_layer(graph, layer)
        except BaseException:
            ctx.close()
            raise
        return graph

    def _move_layer(self, graph: _Graph, layer: int) -> None:
        store = self._store
        keys = store.read_keys(layer, graph.sources)
        plain = rotated(keys, store.rotations[layer])
        turned = self._shift_keys(layer, plain, graph.deltas)
        if turned is not plain:
            graph.turns, keys = True, rotated(turned, store.rotations[layer])
        if turned is not plain or graph.values:
            graph.ctx.expand(store.write_keys(layer, keys, graph.targets))
        if graph.values and not store.layers[layer].latent:
            graph.ctx.expand(store.write_values(layer, store.read_values(layer, graph.sources), graph.targets))
