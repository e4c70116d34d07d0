"""The loop: one thread that owns the executor and serves requests in the order they came.

Callers only touch queues: a slow or gone consumer never holds up the loop, and an exception in one request ends that
request alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

import numpy as np

from ollama_engine.errors import ClosedError, ContextOverflowError
from ollama_engine.input import Batch
from ollama_engine.kvcache import Cache
from ollama_engine.runner.executor import Executor, FloatArray
from ollama_engine.runner.request import Chunk, FinishReason, Request

log = logging.getLogger(__name__)

SEQUENCE = 0
"""The one sequence that is computed at a time."""


class Job(Protocol):
    """Something that needs the executor to itself."""

    def run(self, executor: Executor, cache: Cache) -> None:
        """Do it; deliver results and exceptions to whoever waits, and raise nothing."""

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits that it will not be done."""


class Loop:
    """Runs jobs one after the other on a thread of its own, until closed."""

    def __init__(self, executor: Executor, cache: Cache, name: str) -> None:
        self._executor = executor
        self._cache = cache
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._current: Job | None = None
        self._thread = threading.Thread(target=self._serve, name=f"ollama_engine {name}", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job. Raises ClosedError."""
        with self._lock:
            if self._closed:
                raise ClosedError("this Engine is closed")
            self._jobs.put(job)

    def close(self) -> None:
        """End the current job at its next step, fail the queued ones, and join the thread. Safe to call twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
            current = self._current
        if isinstance(current, GenerateJob):
            current.request.cancelled.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            with self._lock:
                self._current, closed = job, self._closed
            if closed:
                job.fail(ClosedError("the Engine was closed before this request was served"))
                continue
            job.run(self._executor, self._cache)
            with self._lock:
                self._current = None


class CallJob:
    """Computes one value on the loop's thread for a caller that waits."""

    def __init__(self, call: Callable[[Executor, Cache], FloatArray]) -> None:
        self._call = call
        self._answer: SimpleQueue[FloatArray | BaseException] = SimpleQueue()

    def run(self, executor: Executor, cache: Cache) -> None:
        """Compute and deliver."""
        try:
            self._answer.put(self._call(executor, cache))
        except BaseException as error:
            self._answer.put(error)

    def fail(self, error: BaseException) -> None:
        """Deliver the reason."""
        self._answer.put(error)

    def wait(self) -> FloatArray:
        """The value; raises what the call raised."""
        answer = self._answer.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer


class GenerateJob:
    """Serves one request from its prompt to its end."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def fail(self, error: BaseException) -> None:
        """Deliver the reason."""
        self.request.events.put(error)

    def run(self, executor: Executor, cache: Cache) -> None:
        """Prefill, then decode until something ends it; the sequence's cells are free afterwards."""
        request = self.request
        request.started_at = time.perf_counter()
        try:
            while not request.cancelled.is_set():
                logits = _step(request, executor)
                if logits is not None and not _accept(request, logits):
                    return
            self.fail(ClosedError("the request was cancelled"))
        except BaseException as error:
            log.debug("request failed", exc_info=True)
            self.fail(error)
        finally:
            cache.remove(SEQUENCE)


def _step(request: Request, executor: Executor) -> FloatArray | None:
    """Compute the next piece of what is pending; logits float32 [n_vocab] when it was the last piece."""
    pending = request.pending()
    piece = pending[: executor.batch_size]
    batch = Batch.of(piece, request.n_computed, SEQUENCE)
    logits = executor.run(batch)
    request.n_computed += len(piece)
    return logits[0] if len(piece) == len(pending) else None


def _accept(request: Request, logits: FloatArray) -> bool:
    """Sample and deliver one token; False when it ended the request."""
    if request.params.max_tokens == 0:
        return _finish(request, "length")
    token = request.sampler.sample(logits)
    if not request.first_token_at:
        request.first_token_at = time.perf_counter()
    if token in request.eog_ids:
        return _finish(request, "stop")
    wanted = request.params.logprobs
    logprobs = None if wanted is None else (request.sampler.logprobs(logits, token, wanted),)
    request.sampler.accept(token)
    request.sampled.append(token)
    text = request.emitter.push(token)
    done: FinishReason | None = None
    if request.emitter.stopped:
        done = "stop"
    elif len(request.sampled) == request.params.max_tokens or request.n_tokens >= request.num_ctx:
        done = "length"
        text += request.emitter.flush()
    if done is not None:
        usage = request.usage(time.perf_counter())
        request.events.put(Chunk(text, (token,), logprobs, done, usage))
        return False
    request.events.put(Chunk(text, (token,), logprobs))
    return True


def _finish(request: Request, reason: FinishReason) -> bool:
    usage = request.usage(time.perf_counter())
    request.events.put(Chunk(request.emitter.flush(), finish_reason=reason, usage=usage))
    return False


def prompt_logits(executor: Executor, cache: Cache, prompt: list[int]) -> FloatArray:
    """Logits of every row of a prompt, float32 [len(prompt), n_vocab], computed in pieces."""
    rows = []
    try:
        for begin in range(0, len(prompt), executor.max_outputs):
            piece = prompt[begin : begin + executor.max_outputs]
            rows.append(executor.run(Batch.of(piece, begin, SEQUENCE, range(len(piece)))).copy())
    finally:
        cache.remove(SEQUENCE)
    return np.concatenate(rows)


def check_prompt(prompt: list[int], num_ctx: int, n_vocab: int) -> None:
    """Raise ValueError subclasses for a prompt that is empty, too long, or has ids outside of the vocabulary."""
    if not prompt:
        raise ContextOverflowError("the prompt has no tokens, and the model puts none before it; give at least one")
    if len(prompt) > num_ctx:
        raise ContextOverflowError(
            f"the prompt has {len(prompt)} tokens, but num_ctx is {num_ctx}; "
            "shorten it or open the Engine with a larger num_ctx"
        )
    bad = [t for t in prompt if not 0 <= t < n_vocab]
    if bad:
        raise ContextOverflowError(f"token {bad[0]} is not in the vocabulary (0 to {n_vocab - 1})")
