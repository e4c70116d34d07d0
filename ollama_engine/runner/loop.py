"""The loop: one thread that owns the executor and serves requests in the order they came.

Callers only touch queues: a slow or gone consumer never holds up the loop, and an exception in one request ends that
request alone.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np

from ollama_engine.errors import ClosedError, ComputeError, ConfigError, ContextOverflowError, TokenizerError
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

    def cancel(self) -> None:
        """Let `run` end at its next step. Called from any thread, finalisers included; takes no lock."""

    def fail(self, error: BaseException) -> None:
        """Tell whoever waits that it will not be done."""


class Loop:
    """Runs jobs one after the other on a thread of its own, until closed; `on_exit` runs there, as the last thing.

    Closing may come from a finaliser, in any thread and at any place, so nothing here waits for a lock: flags are set
    before they are looked at from the other side, and SimpleQueue.put may interrupt itself.
    """

    def __init__(self, executor: Executor, cache: Cache, name: str, on_exit: Callable[[], None]) -> None:
        # -- collaborators --
        self._executor = executor
        self._cache = cache
        self._on_exit = on_exit
        # -- state --
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._current: Job | None = None
        self._closed = False
        self._ended = False
        # -- thread --
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name=f"ollama_engine {name}", daemon=True)
        self._thread.start()
        # The interpreter must not go away under a computation.
        atexit.register(self.close)

    def submit(self, job: Job) -> None:
        """Queue a job. Raises ClosedError, and ComputeError on the loop's own thread, which would wait for itself."""
        if self._pid != os.getpid():
            raise ClosedError("this Engine was opened before the process forked; open one in the child")
        if self._closed:
            raise ClosedError("this Engine is closed")
        if threading.current_thread() is self._thread:
            raise ComputeError("the Engine is computing in this thread; a log handler or finaliser must not use it")
        self._jobs.put(job)
        if self._ended:
            self._fail_waiting()

    def close(self, *, wait: bool = True) -> None:
        """End the current job at its next step, fail the queued ones, and join the thread. Safe to call twice.

        From the loop's own thread, or without `wait`, this happens as soon as the current step has ended.
        """
        if self._pid != os.getpid():
            return  # a fork has no such thread
        self._closed = True
        self._jobs.put(None)
        current = self._current
        if current is not None:
            current.cancel()
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        try:
            while self._serve_one():
                pass
        finally:
            self._closed = self._ended = True
            self._fail_waiting()
            atexit.unregister(self.close)
            self._on_exit()

    def _serve_one(self) -> bool:
        job = self._jobs.get()
        if job is None:
            return False
        self._current = job
        if self._closed:
            job.fail(_closed_before())
        else:
            job.run(self._executor, self._cache)
        self._current = None
        return True

    def _fail_waiting(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                return
            if job is not None:
                job.fail(_closed_before())


def _closed_before() -> ClosedError:
    return ClosedError("the Engine was closed before this request was served")


def _closed_while() -> ClosedError:
    return ClosedError("the Engine or the stream was closed while this request was served")


def _forget(executor: Executor, cache: Cache) -> None:
    """Free the sequence's cells, and leave nothing in them that could harm the next."""
    cache.remove(SEQUENCE)
    if executor.spoiled:
        cache.scrub()


class LogitsJob:
    """Computes the logits of every row of a prompt, float32 [len(prompt), n_vocab], for a caller that waits."""

    def __init__(self, prompt: list[int], n_vocab: int) -> None:
        self._prompt = prompt
        self._n_vocab = n_vocab
        self._cancelled = False
        self._answer: SimpleQueue[FloatArray | BaseException] = SimpleQueue()

    def run(self, executor: Executor, cache: Cache) -> None:
        """Compute in pieces and deliver."""
        try:
            self._answer.put(self._compute(executor))
        except BaseException as error:
            self.fail(error)
        finally:
            _forget(executor, cache)

    def _compute(self, executor: Executor) -> FloatArray:
        rows = np.empty((len(self._prompt), self._n_vocab), dtype=np.float32)
        for begin in range(0, len(self._prompt), executor.max_outputs):
            if self._cancelled:
                raise _closed_while()
            piece = self._prompt[begin : begin + executor.max_outputs]
            batch = Batch.of(piece, begin, SEQUENCE, range(len(piece)))
            rows[begin : begin + len(piece)] = executor.run(batch)
        return rows

    def cancel(self) -> None:
        """Compute no further piece."""
        self._cancelled = True

    def fail(self, error: BaseException) -> None:
        """Deliver the reason."""
        self._answer.put(error)

    def wait(self) -> FloatArray:
        """The logits; raises what computing them raised."""
        try:
            answer = self._answer.get()
        except BaseException:  # KeyboardInterrupt
            self.cancel()
            raise
        if not isinstance(answer, BaseException):
            return answer
        try:
            raise answer
        finally:
            del answer  # which would hold this frame


class GenerateJob:
    """Serves one request from its prompt to its end."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def cancel(self) -> None:
        """Compute no further step."""
        self.request.cancelled = True

    def fail(self, error: BaseException) -> None:
        """Deliver the reason."""
        self.request.events.put(error)

    def run(self, executor: Executor, cache: Cache) -> None:
        """Prefill, then decode until something ends it; the sequence's cells are free afterwards."""
        request = self.request
        request.started_at = time.perf_counter()
        try:
            while not request.cancelled:
                logits = _step(request, executor)
                if logits is not None and not _accept(request, logits):
                    return
            self.fail(_closed_while())
        except BaseException as error:
            log.debug("request failed", exc_info=True)
            self.fail(error)
        finally:
            _forget(executor, cache)


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
    if request.params.max_tokens == 0 or request.n_tokens >= request.num_ctx:
        return _finish(request, "length")
    logits = logits[: request.sampler.n_vocab]
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
        text += request.emitter.flush()
        done = "stop" if request.emitter.stopped else "length"
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


def check_prompt(prompt: list[int], num_ctx: int, n_vocab: int) -> None:
    """Raise ConfigError for an empty prompt, ContextOverflowError for a long one, TokenizerError for unknown ids."""
    if not prompt:
        raise ConfigError("the prompt has no tokens, and the model puts none before it; give at least one")
    if len(prompt) > num_ctx:
        raise ContextOverflowError(
            f"the prompt has {len(prompt)} tokens, but num_ctx is {num_ctx}; "
            "shorten it or open the Engine with a larger num_ctx"
        )
    bad = [t for t in prompt if not 0 <= t < n_vocab]
    if bad:
        raise TokenizerError(f"token {bad[0]} is not in the vocabulary (0 to {n_vocab - 1})")
