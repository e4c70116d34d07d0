"""Measures several callers at once, through the public Engine with its queues and sampling.

Each stream is a request. Its prompt is random token ids that no other request has, so the prefix cache cannot reuse
anything; its answer has exactly the planned number of tokens, because tokens that end an answer are banned.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from ollama_engine.cli.measure.bench.parts import Samples, Show
from ollama_engine.cli.measure.bench.plan import BenchPlan
from ollama_engine.engine import Engine
from ollama_engine.errors import ComputeError
from ollama_engine.evaluate.measure import random_tokens
from ollama_engine.runner.request.stream import Stream
from ollama_engine.sample import SamplingParams

__all__ = ["Arrival", "Speeds", "measure_streams", "speeds_of"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A chunk of an answer that has reached its caller."""

    at: float
    """Seconds of time.perf_counter."""
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Speeds:
    """Tokens/s of all streams together."""

    prefill_tps: float
    decode_tps: float


def speeds_of(n_prompt: int, submitted: float, answers: Sequence[Sequence[Arrival]]) -> Speeds:
    """Speeds of callers that submitted prompts of `n_prompt` tokens at the same time; `answers` has one list for each.

    Prefill lasts until the last stream has its first token, and counts all prompts. Decoding lasts from then until the
    last stream ends, and counts the tokens that arrive in that time. So a stream that answers while another prompt is
    still computed makes the first figure smaller and adds nothing to the second.
    """
    latest = max(answers, key=lambda arrivals: arrivals[0].at)
    begin, end = latest[0].at, max(arrivals[-1].at for arrivals in answers)
    # Tokens of one step reach their callers one after the other: arrivals within half a step belong to the same step.
    step = (latest[-1].at - begin) / max(1, len(latest) - 1)
    decoded = sum(arrival.n_tokens for arrivals in answers for arrival in arrivals if arrival.at > begin + step / 2)
    return Speeds(len(answers) * n_prompt / (begin - submitted), decoded / (end - begin))


def measure_streams(
    engine: Engine, plan: BenchPlan, n_vocab: int, banned: Collection[int], show: Show
) -> list[Samples]:
    """One entry for each width in `plan.parallel`. Prompts have ids below `n_vocab`; answers have no `banned` ids."""
    seeds = itertools.count(1)
    results = []
    for width in plan.parallel:
        samples: Samples = {"prefill_tps": [], "decode_tps": []}
        title = f"{width} stream{'s' if width > 1 else ''} of {plan.n_prompt} + {plan.n_gen} tokens"
        for repetition in range(-1 if plan.warmup else 0, plan.repetitions):
            warming = repetition < 0
            show(f"{title}: {'warm-up' if warming else f'{repetition + 1} of {plan.repetitions}'}")
            prompts = random_tokens(n_vocab, width, plan.n_prompt, next(seeds)).tolist()
            speeds = _serve(engine, prompts, _sampling(2 if warming else plan.n_gen, banned))
            if not warming:
                samples["prefill_tps"].append(speeds.prefill_tps)
                samples["decode_tps"].append(speeds.decode_tps)
        results.append(samples)
    return results


def _sampling(n_tokens: int, banned: Collection[int]) -> SamplingParams:
    """The default parameters, for answers of exactly `n_tokens` tokens, with a fixed seed."""
    return SamplingParams(max_tokens=n_tokens, logit_bias=dict.fromkeys(banned, -math.inf), seed=0)


def _serve(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> Speeds:
    """Submit all prompts at once, each from its own thread, which also reads the answer."""
    callers = _Callers(engine, params, len(prompts))
    with ThreadPoolExecutor(len(prompts)) as threads:
        try:
            calls = [threads.submit(callers.call, prompt) for prompt in prompts]
            wait(calls, return_when=FIRST_EXCEPTION)
            answers = [call.result() for call in calls if call.done()]
        except BaseException:
            callers.close()  # else leaving the block waits for answers that are not needed any more
            raise
    for tokens in (sum(arrival.n_tokens for arrival in answer) for answer in answers):
        if tokens != params.max_tokens:
            raise ComputeError(f"a stream ended after {tokens} of {params.max_tokens} tokens; nothing can be measured")
    return speeds_of(len(prompts[0]), callers.started, answers)


class _Callers:
    """`width` threads that start together, when all of them are ready."""

    def __init__(self, engine: Engine, params: SamplingParams, width: int) -> None:
        self._engine = engine
        self._params = params
        self._start = threading.Barrier(width, action=self._note_start)
        self._streams: list[Stream] = []
        self._closed = False
        self.started = 0.0
        """Seconds of time.perf_counter."""

    def call(self, prompt: list[int]) -> list[Arrival]:
        """Wait for the other callers, then for the whole answer. Returns the chunks that have tokens."""
        self._start.wait()
        stream = self._engine.stream(prompt, self._params)
        self._streams.append(stream)
        if self._closed:  # closed while this stream was starting
            stream.close()
        arrivals = [Arrival(time.perf_counter(), len(chunk.tokens)) for chunk in stream]
        return [arrival for arrival in arrivals if arrival.n_tokens]

    def close(self) -> None:
        """Abandon the measurement: streams that wait for the start never start, the others are closed."""
        self._closed = True
        self._start.abort()
        for stream in self._streams:
            stream.close()

    def _note_start(self) -> None:
        self.started = time.perf_counter()
