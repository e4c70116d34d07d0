"""How long steps take with smaller types of keys and values, beside f16 and beside llama.cpp's.

    python bench/peers.py build                         # llama.cpp, once; without it ours is measured alone
    python bench/cache_steps.py llama-1b-q4_k_m.gguf -t 2 --contexts 512 8192

    python bench/cache_steps.py --writing               # rounding and writing alone, one thread

A step is a whole one: one token that decodes, and 256 tokens of a prompt, behind a context whose keys and values are
those of 256 computed tokens again and again. All types are in memory at a time, and their steps are taken in turn:
medians. llama.cpp's is the mean of llama-bench, with flash attention, which computes the context first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.peer_tools import has_tool, tool
from ollama_engine.config import EngineConfig
from ollama_engine.evaluate.measure import random_tokens
from ollama_engine.input import Batch
from ollama_engine.kvcache import CacheConfig, LayerShape, SavedRows
from ollama_engine.kvcache.store import CellIndices, KeyValueStore
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.runner.load.loading import Loaded, load

TYPES = ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "iq4_nl", "q4_0")
PROMPT = 256


def batch(loaded: Loaded, begin: int, n: int) -> Batch:
    tokens = random_tokens(loaded.model.n_vocab, 1, n, begin)[0]
    positions = np.arange(begin, begin + n, dtype=np.int32)
    return Batch(tokens, positions, np.zeros(n, np.int32), np.array([n - 1], np.int32), in_place=n == 1)


def milliseconds(loaded: Loaded, begin: int, n: int) -> float:
    """A step of `n` tokens behind the first `begin`, which are all that is kept."""
    step = batch(loaded, begin, n)
    before = time.perf_counter()
    loaded.executor.run(step)
    seconds = time.perf_counter() - before
    loaded.cache.remove(0, begin)
    return 1e3 * seconds


def fill(loaded: Loaded, context: int) -> None:
    """Give the sequence so many tokens: those of one prompt, again and again."""
    saveable = loaded.cache.saveable
    assert saveable is not None, "such a cache has no types"
    loaded.cache.remove(0)
    loaded.executor.run(batch(loaded, 0, PROMPT))
    (saved,) = saveable.save(0)
    loaded.cache.remove(0)
    rows = tuple(np.tile(part, (-(-context // PROMPT), 1))[:context] for part in saved.rows)
    saveable.restore(0, [SavedRows(np.arange(context, dtype=np.int32), rows)])


def ours(args: argparse.Namespace) -> Iterator[str]:
    with ExitStack() as stack:
        loaded = {}
        for dtype in args.types:
            config = EngineConfig(num_ctx=max(args.contexts) + 2 * PROMPT, batch_size=PROMPT, parallel=1, draft="off",
                                  threads=args.threads, kv_cache_type=dtype)  # fmt: skip
            loaded[dtype] = load(args.model, config)
            stack.callback(loaded[dtype].close)
        for context in args.contexts:
            for one in loaded.values():
                fill(one, context)
            for n, turns in ((1, args.steps), (PROMPT, args.prompts)):
                taken = {dtype: list[float]() for dtype in loaded}
                for _ in range(turns + 1):
                    for dtype, one in loaded.items():
                        taken[dtype].append(milliseconds(one, context, n))
                for dtype, each in taken.items():
                    yield (f"ours       {dtype:7} {n:4} behind {context:5}: {statistics.median(each[1:]):8.2f} ms "
                           f"({min(each[1:]):.2f} to {max(each[1:]):.2f})")  # fmt: skip


def writing(dtypes: Sequence[str], heads: int = 8, dim: int = 64) -> Iterator[str]:
    """Milliseconds of CPU time for the keys and values of 256 tokens of one layer, which are rotated before."""
    for dtype in dtypes:
        layer = LayerShape(kv_heads=heads, key_dim=dim, value_dim=dim)
        with Backend(BackendParams(threads=1, gpu_layers=0)) as backend, Context(backend) as ctx:
            config = CacheConfig(dtype=dtype, flash_attention=True)  # type: ignore[arg-type]
            store = KeyValueStore(backend, [layer], [0], 2 * PROMPT, config, paged=True)
            places = CellIndices(ctx, store, PROMPT, "i64", "places")
            rows = np.random.default_rng(1).standard_normal((PROMPT, heads * dim), dtype=np.float32)
            ctx.expand(store.write_keys(0, ctx.from_floats(rows), places))
            ctx.expand(store.write_values(0, ctx.from_floats(rows), places))
            ctx.alloc()
            taken = []
            for _ in range(40):
                places.set(np.arange(PROMPT, dtype=np.int32))
                before = time.process_time()
                ctx.compute()
                taken.append(1e3 * (time.process_time() - before))
            yield f"writing    {dtype:7} {PROMPT:4} tokens: {min(taken):8.3f} ms"
            store.close()


def llama_cpp(args: argparse.Namespace, dtype: str, context: int) -> Iterator[str]:
    command = [tool("llama-bench"), "-m", args.model, "-t", str(args.threads), "-fa", "1", "-ctk", dtype, "-ctv", dtype,
               "-d", str(context), "-n", str(args.steps), "-p", str(PROMPT), "-r", "1", "-o", "json"]  # fmt: skip
    for result in json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout):
        tokens, n = _sizes(result)
        yield f"llama.cpp  {dtype:7} {n:4} behind {context:5}: {1e3 * n / result['avg_ts']:8.2f} ms ({tokens} tokens)"


def _sizes(result: dict[str, Any]) -> tuple[int, int]:
    """Tokens that were computed, and how many of them in a step."""
    return (result["n_prompt"], PROMPT) if result["n_prompt"] else (result["n_gen"], 1)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--writing", action="store_true")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 8192])
    parser.add_argument("--types", nargs="*", default=list(TYPES), choices=TYPES)
    parser.add_argument("--peer-types", nargs="*", default=["f16", "q8_0", "q4_0"], choices=TYPES)
    parser.add_argument("--steps", type=int, default=16, help="of one token; one more is not counted")
    parser.add_argument("--prompts", type=int, default=3, help="steps of a prompt")
    args = parser.parse_args(arguments)
    if args.writing:
        print("\n".join(writing(args.types)))
    if args.model is None:
        return
    for line in ours(args) if args.types else ():
        print(line, flush=True)
    if has_tool("llama-bench"):
        for context in args.contexts:
            for dtype in args.peer_types:
                for line in llama_cpp(args, dtype, context):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
