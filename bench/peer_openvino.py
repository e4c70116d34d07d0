"""OpenVINO with int4 weights: a prompt of so many tokens, and tokens decoded behind it. `.venv-peers` has its Python.

    .venv-peers/bin/python bench/peer_openvino.py SHAPE -p 512 -n 32 -t 2

SHAPE is a llama-like shape of `model_shapes.py` as JSON. Its decoder is built here from OpenVINO's own operations: int4
weights in groups of 64 (u4, with f16 scales and u4 zero points) of random bits, keys and values as states. Prints JSON
as `peer_child.py` does.

Not equal to a GGUF file of this shape: the model takes embeddings, so it looks up no tokens; its rotary embedding has
no frequency factors; its output product is of the last row only and its weights are 4 bits everywhere, where q4_k_m has
some of 6 bits. It samples nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset6 as states
from openvino import opset13 as ops

GROUP = 64
Node = Any  # openvino.Node: openvino's stubs do not cover its operations


# -- the model ---------------------------------------------------------------------------------------------------------


def integers(*values: int) -> Node:
    return ops.constant(np.array(values, np.int64))


def numbers(values: Any) -> Node:
    return ops.constant(np.asarray(values, np.float32))


def nibbles(rng: np.random.Generator, *dims: int) -> Node:
    """Random u4 numbers as a constant of dims."""
    tensor = ov.Tensor(ov.Type.u4, ov.Shape(dims))  # owns its memory; one around a numpy array borrows it
    packed = tensor.data.reshape(-1)
    packed[:] = np.frombuffer(rng.bytes(packed.size), np.uint8)
    return ov.op.Constant(tensor)


class Builder:
    """Builds the layers of `shape` on embeddings [1, tokens, n_embd] at `positions` [tokens]."""

    def __init__(self, shape: SimpleNamespace) -> None:
        self.shape = shape
        self.rng = np.random.default_rng(1)
        self.embeddings = ops.parameter([1, -1, shape.n_embd], np.float32, "embeddings")
        self.positions = ops.parameter([-1], np.int64, "positions")
        self.beam = ops.parameter([1], np.int32, "beam_idx")  # the plugin knows a cache by this Gather
        self.stores: list[Node] = []
        self.cos, self.sin = self._rotations()

    def _rotations(self) -> tuple[Node, Node]:
        half = np.arange(0, self.shape.head_dim, 2) / self.shape.head_dim
        angles = np.outer(np.arange(4096), self.shape.rope_base**-half)
        angles = np.concatenate([angles, angles], axis=1)[None, None]
        return self._at_positions(np.cos(angles)), self._at_positions(np.sin(angles))

    def _at_positions(self, table: Any) -> Node:
        return ops.gather(numbers(table), self.positions, integers(2))

    def product(self, x: Node, rows: int, columns: int) -> Node:
        """x times random int4 weights [rows, columns], in the form that the CPU plugin keeps compressed."""
        groups = columns // GROUP
        weights = ops.convert(nibbles(self.rng, rows, groups, GROUP), np.float16)
        zeros = ops.convert(nibbles(self.rng, rows, groups, 1), np.float16)
        scales = ops.constant(np.full((rows, groups, 1), columns**-0.5 / 6.5, np.float16))
        scaled = ops.multiply(ops.subtract(weights, zeros), scales)
        matrix = ops.convert(ops.reshape(scaled, integers(rows, columns), False), np.float32)
        return ops.matmul(x, matrix, False, True)

    def norm(self, x: Node) -> Node:
        mean = ops.reduce_mean(ops.power(x, numbers(2.0)), integers(-1), True)
        root = ops.sqrt(ops.add(mean, numbers(self.shape.norm_eps)))
        scaled = ops.multiply(x, ops.divide(numbers(1.0), root))
        return ops.multiply(scaled, numbers(np.ones((1, 1, self.shape.n_embd))))

    def heads(self, x: Node, count: int) -> Node:
        split = ops.reshape(x, integers(0, 0, count, self.shape.head_dim), True)
        return ops.transpose(split, integers(0, 2, 1, 3))

    def rotated(self, x: Node) -> Node:
        half, end = self.shape.head_dim // 2, self.shape.head_dim
        low = ops.slice(x, integers(0), integers(half), integers(1), integers(3))
        high = ops.slice(x, integers(half), integers(end), integers(1), integers(3))
        turned = ops.concat([ops.multiply(high, numbers(-1.0)), low], 3)
        return ops.add(ops.multiply(x, self.cos), ops.multiply(turned, self.sin))

    def cached(self, x: Node, name: str) -> Node:
        """x behind what the cache holds, once for each query head."""
        kv, width = self.shape.n_head_kv, self.shape.head_dim
        empty = ops.broadcast(numbers(0.0), integers(1, kv, 0, width))
        past = states.read_value(empty, name, np.float32, ov.PartialShape([1, kv, -1, width]))
        every = ops.concat([ops.gather(past, self.beam, integers(0)), x], 2)
        self.stores.append(states.assign(every, name))
        shared = self.shape.n_head // kv
        copies = integers(1, 1, shared, 1, 1)
        wide = ops.broadcast(ops.unsqueeze(every, integers(2)), copies, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, integers(0, self.shape.n_head, -1, width), True)

    def attention(self, x: Node, i: int) -> Node:
        s = self.shape
        q_width, kv_width = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
        q = self.rotated(self.heads(self.product(x, q_width, s.n_embd), s.n_head))
        k = self.rotated(self.heads(self.product(x, kv_width, s.n_embd), s.n_head_kv))
        v = self.heads(self.product(x, kv_width, s.n_embd), s.n_head_kv)
        found = ops.scaled_dot_product_attention(q, self.cached(k, f"k{i}"), self.cached(v, f"v{i}"), causal=True)
        joined = ops.reshape(ops.transpose(found, integers(0, 2, 1, 3)), integers(0, 0, q_width), True)
        return self.product(joined, s.n_embd, q_width)

    def feed_forward(self, x: Node) -> Node:
        s = self.shape
        gate, up = (self.product(x, s.n_ff, s.n_embd) for _ in range(2))
        return self.product(ops.multiply(ops.swish(gate), up), s.n_embd, s.n_ff)

    def model(self) -> Any:
        x: Node = self.embeddings
        for i in range(self.shape.n_layer):
            x = ops.add(x, self.attention(self.norm(x), i))
            x = ops.add(x, self.feed_forward(self.norm(x)))
        last = ops.slice(self.norm(x), integers(-1), integers(2**31 - 1), integers(1), integers(1))
        logits = ops.result(self.product(last, self.shape.n_vocab, self.shape.n_embd))
        return ov.Model([logits], self.stores, [self.embeddings, self.positions, self.beam], self.shape.name)


# -- measuring ---------------------------------------------------------------------------------------------------------


class Peer:
    """One compiled model: positional inputs are embeddings, positions, beam_idx."""

    def __init__(self, model: Any, shape: SimpleNamespace, threads: int) -> None:
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.compiled = ov.Core().compile_model(model, "CPU", settings)
        self.request = self.compiled.create_infer_request()
        self.rng = np.random.default_rng(2)
        self.width = shape.n_embd

    def step(self, start: int, count: int) -> float:
        """Seconds for `count` tokens behind `start` others."""
        embeddings = self.rng.standard_normal((1, count, self.width), np.float32)
        positions = np.arange(start, start + count, dtype=np.int64)
        began = time.perf_counter()
        self.request.infer([embeddings, positions, np.zeros(1, np.int32)])
        seconds = time.perf_counter() - began
        if not np.isfinite(self.request.get_output_tensor(0).data).all():
            raise SystemExit("OpenVINO's logits are not finite: these figures would mean nothing")
        return seconds

    def speeds(self, prompt: int, generate: int) -> tuple[float, float]:
        """(prompt, decode) in tokens/s, from an empty cache."""
        self.request.reset_state()
        read = prompt / self.step(0, prompt)
        return read, 1 / statistics.median(self.step(prompt + i, 1) for i in range(generate))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("shape", type=json.loads, metavar="SHAPE", help="its fields as JSON")
    made.add_argument("-p", type=int, default=512, metavar="TOKENS", help="prompt length")
    made.add_argument("-n", type=int, default=32, metavar="TOKENS", help="tokens to decode")
    made.add_argument("-t", type=int, default=2, metavar="THREADS")
    return made


def main() -> None:
    chosen = parser().parse_args()
    shape = SimpleNamespace(**chosen.shape)
    model = Builder(shape).model()
    began = time.perf_counter()
    peer = Peer(model, shape, chosen.t)
    loaded = time.perf_counter() - began
    peer.step(0, chosen.p)  # warms up
    peer.step(chosen.p, 1)
    read, decoded = peer.speeds(chosen.p, chosen.n)
    print(json.dumps({"load_seconds": loaded, "prefill_tps": read, "decode_tps": decoded}))


if __name__ == "__main__":
    main()
