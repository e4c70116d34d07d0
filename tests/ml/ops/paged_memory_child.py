"""Run by test_paged.py: attention of one row over lists whose pieces are as many as there can be.

Nothing else is in the graph's memory, so that a partial result beyond it spoils the heap, which ends the process.
"""

from __future__ import annotations

import numpy as np

from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage

KV_HEADS, HEADS, DIM = 8, 32, 64


def attend(backend: Backend, n: int) -> None:
    with Storage(backend, 2) as storage, Context(backend) as ctx:
        stored = [storage.add(name, "f16", (KV_HEADS * DIM, n)) for name in ("k", "v")]
        storage.allocate(0)
        for tensor in stored:
            tensor.set(np.zeros((n, KV_HEADS * DIM), np.float16))
        query = ops.permute(ctx.from_floats(np.ones((1, HEADS, DIM), np.float32)), 0, 2, 1, 3)
        keys, values = (ops.view(t, (DIM, n, KV_HEADS), (t.stride(1), DIM * 2), ctx=ctx) for t in stored)
        parts, cells = ctx.from_ints(np.array([[0, n]])), ctx.from_ints(np.arange(n))
        ctx.forward(ops.paged_attention(query, keys, values, parts, cells))
        ctx.compute()


if __name__ == "__main__":
    with Backend(BackendParams(threads=1), max_nodes=256) as backend:
        for n in (4096, 4090, 8192, 16384) * 3:
            attend(backend, n)
    print("done")
