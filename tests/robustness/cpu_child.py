"""What one CPU computes: run by a Python that has the portable build, under an emulator; prints one line of JSON.

`exact` has the same value on every CPU, `tokens` and `texts` too as long as no two tokens are nearly level; `chosen`
says what runs here.
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.ml import ops
from ollama_engine.ml.device.device import devices
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage, can_repack
from ollama_engine.ml.ops.amx import amx_allowed
from ollama_engine.ml.ops.paged import paged_attention_instructions
from ollama_engine.ml.ops.small_batch import small_batch_instructions
from ollama_engine.ml.weights.kernel_choice import THIS_CPU
from ollama_engine.ml.weights.quantize import TARGETS, dequantize_rows, quantize_rows
from ollama_engine.sample._sample import sampler_instructions

LENGTH, WIDTH = 512, 48
PROMPT = "Once upon a time there was a fox who"


def chosen() -> dict[str, object]:
    cpu = devices()[-1]
    return {
        "kind": THIS_CPU,
        "ggml": sorted(name for name, value in cpu.features.items() if value == "1"),
        "small_batch": small_batch_instructions("q4_0")[-1],
        "attention": paged_attention_instructions("f16")[-1],
        "logits": sampler_instructions()[-1],
        "amx": amx_allowed(),
    }


def products() -> dict[str, str]:
    """Products of every type by every kernel that is here, compared with numpy's; ours as hashes of their bits."""
    rng = np.random.default_rng(16)
    rows, x = (rng.normal(0, 1, (n, LENGTH)).astype(np.float32) for n in (WIDTH, 17))
    hashes = {}
    with Backend(BackendParams(threads=1), max_nodes=64) as backend:
        for dtype in (dtype for dtype in TARGETS if dtype != "f32"):
            for name, values in compute(backend, dtype, rows, x).items():
                hashes[f"{dtype} {name}"] = hashlib.sha256(values.tobytes()).hexdigest()[:16]
    return hashes


def compute(backend: Backend, dtype: str, rows: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
    """Checks ggml's products, of the weights as they are and of their repacked copy; returns ours."""
    with Storage(backend, 1) as plain, Storage(backend, 1) as copy:
        weight = plain.add("w", dtype, (LENGTH, WIDTH))
        plain.allocate(0)
        raw = np.empty(weight.nbytes, np.uint8)
        quantize_rows(dtype, rows, raw)
        read = np.empty(WIDTH * LENGTH, np.float32)
        dequantize_rows(dtype, raw, read)
        weights = [weight]
        if can_repack(backend, dtype, (LENGTH, WIDTH)):
            weights.append(copy.add("w", dtype, (LENGTH, WIDTH)))
            copy.allocate_repacked()
        for each in weights:
            each.set_bytes(raw)
        found = {}
        for n in (1, 4, 17):
            exact = x[:n] @ read.reshape(WIDTH, LENGTH).T
            for each in weights:
                check(dtype, product(backend, each, x[:n]), exact)
            for name in small_batch_instructions(dtype):
                values = product(backend, weight, x[:n], name)
                check(dtype, values, exact)
                found[f"{n} {name}"] = values
        last = {n: [values for name, values in found.items() if name.startswith(f"{n} ")] for n in (1, 4, 17)}
        for values in last.values():
            assert len({each.tobytes() for each in values}) <= 1, f"{dtype}: instruction sets differ"
        return {str(n): values[-1] for n, values in last.items() if values}


def product(backend: Backend, weight: object, x: np.ndarray, instructions: str | None = None) -> np.ndarray:
    with Context(backend) as ctx:
        values = ctx.from_floats(x)
        y = ops.mul_mat_small_batch(weight, values, instructions) if instructions else ops.mul_mat(weight, values)
        ctx.forward(y)
        ctx.compute()
        return y.numpy().reshape(len(x), WIDTH).copy()


def check(dtype: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Activations are rounded to 8 bits for most types."""
    worst = float(np.abs(found - expected).max() / expected.std())
    assert worst < 0.05, f"{dtype}: off by {worst}"


def texts() -> dict[str, object]:
    """Answers of the story-teller: greedy, sampled, forced into a form, with another cache, several at once."""
    greedy = SamplingParams(temperature=0, max_tokens=16)
    few = SamplingParams(temperature=0, max_tokens=6)
    found: dict[str, object] = {}
    with Engine(demo.path(), num_ctx=256, threads=1) as engine:
        found["greedy"] = engine.generate(PROMPT, greedy).tokens
        found["again"] = engine.generate(PROMPT, greedy).tokens  # with what is cached of it
        found["sampled"] = engine.generate(PROMPT, SamplingParams(temperature=0.8, seed=7, max_tokens=8)).tokens
        found["several"] = [answer.tokens for answer in engine.generate([PROMPT, "The cat", "A dog"], greedy)]
        found["forced"] = engine.generate(PROMPT, few, format={"type": "boolean"}).text
        found["ids"] = list(engine.tokenize("Tom's naïve 猫 \U0001f98a  sat."))
    with Engine(demo.path(), num_ctx=256, threads=2, kv_cache_type="q8_0") as engine:
        found["q8_0 cache"] = engine.generate(PROMPT, few).tokens
    return found


def picture() -> str:
    from PIL import Image  # noqa: PLC0415 (as late as a caller has it)

    with Engine(demo.vision_path(), num_ctx=512, threads=1) as engine:
        image = Image.new("RGB", (64, 64), "red")
        return engine.generate("[img]What colour?", SamplingParams(temperature=0, max_tokens=8), images=[image]).text


def main() -> None:
    asked = sys.argv[1:] or ["chosen", "exact", "texts", "picture"]
    parts = {"chosen": chosen, "exact": products, "texts": texts, "picture": picture}
    print(json.dumps({name: parts[name]() for name in asked}))


if __name__ == "__main__":
    main()
