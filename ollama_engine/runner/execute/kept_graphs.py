"""KeptGraphs: the graphs that were built last, for steps of the same shapes.

A step with a draft has other rows than the step before it, so the shapes of a few numbers of rows come in turn.
Building a graph takes as long as half a step of a small model.
"""

from __future__ import annotations

from collections import OrderedDict

from ollama_engine.ml.graph.context import Context
from ollama_engine.runner.execute.graph import GraphShape, StepGraph

__all__ = ["MOST", "MOST_BYTES", "KeptGraphs", "bytes_of"]

MOST = 16
"""Most graphs."""
FEW = 64
"""Rows of a graph that is likely to be used again: steps of answers have as many at most, with their drafts. Few
prompts have the length of another."""
MOST_BYTES = 16 << 20
"""Most host memory that they take. The results of all lie in one place, which the backend has."""


def bytes_of(ctx: Context) -> int:
    """Host memory that a graph takes, beside its results."""
    return ctx.description_bytes + ctx.constant_bytes


class KeptGraphs:
    """Graphs by shape. Those of prompts that were used once are closed first, then the one used longest ago."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[GraphShape, StepGraph] = OrderedDict()

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def nbytes(self) -> int:
        """Host memory that they take, beside their results."""
        return sum(bytes_of(graph.ctx) for graph in self._graphs.values())

    def find(self, shape: GraphShape) -> StepGraph | None:
        """The graph of a shape, which then counts as used last."""
        graph = self._graphs.get(shape)
        if graph is not None:
            self._graphs.move_to_end(shape)
        return graph

    def add(self, graph: StepGraph, in_flight: StepGraph | None) -> None:
        """Keep a new graph, and drop others as far as there are too many; never the one in flight."""
        self._graphs[graph.shape] = graph
        others = [kept for kept in self._graphs.values() if kept is not graph and kept is not in_flight]
        for kept in sorted(others, key=lambda kept: kept.reused or kept.shape.n_tokens <= FEW):
            if len(self._graphs) <= MOST and self.nbytes <= MOST_BYTES:
                return
            self.drop(kept)

    def drop(self, graph: StepGraph) -> None:
        """Close a graph, which need not be kept any more."""
        self._graphs.pop(graph.shape, None)
        graph.ctx.close()

    def close(self) -> None:
        """Close all graphs. None may be in flight."""
        for graph in list(self._graphs.values()):
            self.drop(graph)
