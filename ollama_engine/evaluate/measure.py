"""Measures prefill and decode: random tokens through the executor, without tokenizer, scheduler and sampler.

A stream is a sequence; streams are computed together. Every measurement starts and ends with an empty cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import numpy as np

from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache import Cache
from ollama_engine.runner.execute.executor import Executor

__all__ = ["compute_in_turn", "decode_seconds", "prefill_seconds", "random_tokens"]


def random_tokens(n_vocab: int, streams: int, n_tokens: int, seed: int = 0) -> Int32Array:
    """Token ids, int32 [streams, n_tokens]; the same for the same arguments.

    Uses SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), because numpy's
    generators take 10 ms to import, most of it to collect entropy for a seed that is not needed here.
    """
    x = np.uint64(seed) + np.arange(1, streams * n_tokens + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) % np.uint64(n_vocab)).astype(np.int32).reshape(streams, n_tokens)


def prefill_seconds(executor: Executor, cache: Cache, tokens: Int32Array) -> float:
    """Seconds for prompts int32 [streams, n_tokens], computed in full batches, one stream after the other.

    Logits are computed for the last token of each prompt, and of each batch as an executor wants some. Raises
    ContextOverflowError when the prompts do not fit.
    """
    return _seconds(executor, cache, tokens, _prompt_batches(tokens, executor.batch_size))


def decode_seconds(executor: Executor, cache: Cache, tokens: Int32Array) -> float:
    """Seconds to decode int32 [streams, n_tokens]: each step takes one token per stream and computes its logits."""
    return _seconds(executor, cache, tokens, _answer_batches(tokens))


def _seconds(executor: Executor, cache: Cache, tokens: Int32Array, batches: Iterator[Batch]) -> float:
    started = time.perf_counter()
    try:
        compute_in_turn(executor, batches)
        return time.perf_counter() - started
    finally:
        for stream in range(len(tokens)):
            cache.remove(stream)


def compute_in_turn(executor: Executor, batches: Iterable[Batch]) -> None:
    """Compute batches as the engine computes its steps: the next one is prepared while the device computes.

    Raises as `Executor.run` does; nothing is in flight then.
    """
    running = False
    try:
        for batch in batches:
            executor.prepare(batch)
            if running:
                running = False
                _wait(executor)
            executor.launch(batch.tokens)
            running = True
    finally:
        if running:
            _wait(executor)
        executor.scrap()


def _wait(executor: Executor) -> None:
    with executor.results():
        pass


def _prompt_batches(tokens: Int32Array, batch_size: int) -> Iterator[Batch]:
    streams, n_tokens = tokens.shape
    flat = tokens.reshape(-1)
    positions = np.tile(np.arange(n_tokens, dtype=np.int32), streams)
    sequences = np.repeat(np.arange(streams, dtype=np.int32), n_tokens)
    for begin in range(0, flat.size, batch_size):
        piece = slice(begin, begin + batch_size)
        last = positions[piece] == n_tokens - 1
        last[-1] = True
        yield Batch(flat[piece], positions[piece], sequences[piece], np.flatnonzero(last).astype(np.int32))


def _answer_batches(tokens: Int32Array) -> Iterator[Batch]:
    streams, n_tokens = tokens.shape
    rows = np.arange(streams, dtype=np.int32)
    for position in range(n_tokens):
        positions = np.full(streams, position, np.int32)
        yield Batch(np.ascontiguousarray(tokens[:, position]), positions, rows, rows, in_place=True)
