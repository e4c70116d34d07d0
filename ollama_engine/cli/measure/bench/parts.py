"""Measures one prompt and one answer separately, as llama-bench does: random tokens through the executor.

From an empty context, and behind an existing context (llama-bench's depth, `-d`): its tokens are computed first,
without timing, and stay for all repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ollama_engine.cli.measure.bench.plan import BenchPlan
from ollama_engine.evaluate.measure import compute_in_turn, decode_seconds, prefill_seconds, random_tokens
from ollama_engine.input import Batch
from ollama_engine.kvcache import Cache
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.loading import Loaded

__all__ = ["Samples", "Show", "measure_depths", "measure_parts"]

Samples = dict[str, list[float]]
"""Tokens/s of every repetition, {"prefill_tps": [...], "decode_tps": [...]}; [] for a part that is left out. Of one
caller also {"threads_in_use": [...]}, the number that computed in each repetition of either part."""
Show = Callable[[str], None]
"""Shows the user what is being measured."""

SEQUENCE = 0
SETTLING = 1.0
"""Seconds for which a warm-up goes on at most until all threads compute. On a machine that looks busy the engine begins
with fewer, and looks for free CPUs (ml/threads/thread_governor.py)."""


def measure_parts(loaded: Loaded, plan: BenchPlan, show: Show) -> Samples:
    """Prompt and answer, each from an empty context."""
    executor, cache = loaded.executor, loaded.cache
    tokens = random_tokens(loaded.model.n_vocab, 1, max(plan.n_prompt, plan.n_gen))
    return _samples(
        loaded.backend,
        plan,
        show,
        "",
        lambda n_tokens: prefill_seconds(executor, cache, tokens[:, :n_tokens]),
        lambda n_tokens: decode_seconds(executor, cache, tokens[:, :n_tokens]),
    )


def measure_depths(loaded: Loaded, plan: BenchPlan, show: Show) -> list[Samples]:
    """Prompt and answer, each behind a context; one entry for each depth in `plan.depths`."""
    tokens = random_tokens(loaded.model.n_vocab, 1, plan.num_ctx)[0].tolist()
    context = _Context(loaded.executor, loaded.cache, tokens)
    results = []
    for depth in plan.depths:
        show(f"depth {depth}: computing the context")
        context.fill(depth)
        title, parts = f"depth {depth}, ", (context.prefill_seconds, context.decode_seconds)
        results.append(_samples(loaded.backend, plan, show, title, *parts))
    return results


def _samples(
    backend: Backend, plan: BenchPlan, show: Show, title: str, prefill: Callable[[int], float],
    decode: Callable[[int], float],
) -> Samples:  # fmt: skip
    """Warm-up and repetitions of both. `prefill` and `decode` take a number of tokens and return seconds."""
    threads: list[float] = []
    samples: Samples = {"threads_in_use": threads}
    for name, n_tokens, n_warm, seconds in (
        ("prefill", plan.n_prompt, plan.n_prompt, prefill),
        ("decode", plan.n_gen, 1, decode),
    ):
        speeds = samples[f"{name}_tps"] = []
        if n_tokens == 0:
            continue
        if plan.warmup:
            show(f"{title}{name}: warm-up")
            _warm_up(backend, partial(seconds, n_warm))
        for repetition in range(plan.repetitions):
            show(f"{title}{name} of {n_tokens} tokens: {repetition + 1} of {plan.repetitions}")
            speeds.append(n_tokens / seconds(n_tokens))
            threads.append(backend.threads_in_use)
    return samples


def _warm_up(backend: Backend, run: Callable[[], float]) -> None:
    end = time.monotonic() + SETTLING
    run()
    while backend.threads_in_use < backend.threads and time.monotonic() < end:
        run()


class _Context:
    """A sequence of `tokens`; the cache holds a prefix of it."""

    def __init__(self, executor: Executor, cache: Cache, tokens: list[int]) -> None:
        self._executor = executor
        self._cache = cache
        self._tokens = tokens
        self._depth = 0

    def fill(self, depth: int) -> None:
        """Make the cache hold exactly the first `depth` tokens, and compute as few of them as possible."""
        # A window may have dropped tokens that the tokens from here on attend to.
        if depth < self._depth or not self._cache.can_resume(SEQUENCE, self._depth):
            self._depth = 0
        self._cache.remove(SEQUENCE, self._depth)
        self._compute(self._depth, depth, self._executor.batch_size)
        self._depth = depth

    def prefill_seconds(self, n_tokens: int) -> float:
        """Seconds for the next `n_tokens` in full batches."""
        return self._seconds(n_tokens, self._executor.batch_size)

    def decode_seconds(self, n_tokens: int) -> float:
        """Seconds for the next `n_tokens` one by one."""
        return self._seconds(n_tokens, 1)

    def _seconds(self, n_tokens: int, batch_size: int) -> float:
        self.fill(self._depth)
        started = time.perf_counter()
        self._compute(self._depth, self._depth + n_tokens, batch_size)
        return time.perf_counter() - started

    def _compute(self, begin: int, end: int, batch_size: int) -> None:
        firsts, tokens = range(begin, end, batch_size), self._tokens
        batches = (Batch.of(tokens[first : min(first + batch_size, end)], first, SEQUENCE) for first in firsts)
        # As an answer alone is computed.
        compute_in_turn(self._executor, (replace(batch, in_place=batch_size == 1) for batch in batches))
