"""Runs one scene in which threads use the same objects of ours; without Python's lock, too.

Run by test_threads.py: python -m tests.robustness.threads_child NAME. A scene passes when its process exits with 0.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import itertools
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ClosedError, SamplingError, ShapeError
from ollama_engine.kvcache import Cells
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.runner.speculative.ngram_index import NgramIndex
from ollama_engine.sample import Sampler
from ollama_engine.tokenizer import from_metadata
from tests.ml.graph.scenes import new_backend
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import join

THREADS = 4
SCENES: dict[str, Callable[[], None]] = {}


def scene(function: Callable[[], None]) -> Callable[[], None]:
    SCENES[function.__name__] = function
    return function


def together(*works: Callable[[], object]) -> None:
    """Each in a thread of its own, all from one moment on. Raises the first error."""
    ready, errors = threading.Barrier(len(works)), list[BaseException]()

    def run(work: Callable[[], object]) -> None:
        ready.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    join(*threads, seconds=100)
    if errors:
        raise errors[0]


def crowd(work: Callable[[int], object]) -> None:
    together(*(functools.partial(work, i) for i in range(THREADS)))


@scene
def one_sampler() -> None:
    """A token, or the error that another thread is using it."""
    rows = np.random.default_rng(1).normal(0, 3, (2, 2_000)).astype(np.float32)
    params = SamplingParams(seed=1, repeat_penalty=1.1, dry_multiplier=0.5, repeat_last_n=-1)
    sampler = Sampler(params, 2_000)
    accepted = itertools.count()

    def work(i: int) -> None:
        for turn in range(2_000):
            with contextlib.suppress(SamplingError):
                sampler.accept_many([i, turn % 7])
                next(accepted)
            with contextlib.suppress(SamplingError):
                assert 0 <= sampler.sample(rows[turn % 2]) < 2_000
            with contextlib.suppress(SamplingError):
                sampler.fork()

    crowd(work)
    assert next(accepted) > 0
    assert sampler.fork().sample(rows[0]) == sampler.sample(rows[0])


@scene
def one_index_of_ngrams() -> None:
    index = NgramIndex()

    def work(i: int) -> None:
        for _ in range(3_000):
            index.extend([i, i, i])
            assert len(index.part(0, 5)) <= 5
            index.find([i, i], within=False)

    crowd(work)
    assert len(index) == THREADS * 9_000
    assert sorted(index.part(0, len(index))) == sorted([*range(THREADS)] * 9_000)


@scene
def one_table_of_cells() -> None:
    """Each thread has a sequence of its own, which it fills, shares and removes."""
    cells = Cells(THREADS * 64)

    def work(i: int) -> None:
        positions, mine = np.arange(8, dtype=np.int32), np.full(8, i, np.int32)
        for turn in range(800):
            while True:  # another thread may take the places that were found
                places = cells.find_places(positions, mine)
                with contextlib.suppress(ValueError):
                    cells.place(places, positions, mine)
                    break
            other = THREADS + i * 50 + turn % 50
            assert cells.share(i, other, 8) == 8
            cells.usage()
            cells.remove(i)
            cells.remove(other)

    crowd(work)
    cells.check()
    assert cells.n_free == THREADS * 64


@scene
def one_file() -> None:
    """Metadata are read while the file is closed."""
    for _ in range(60):
        file = GGUFFile(demo.path())

        def read(file: GGUFFile = file) -> None:
            with contextlib.suppress(ClosedError):
                while True:
                    assert len(file.metadata["tokenizer.ggml.tokens"]) > 100
                    assert file.version == 3

        together(read, read, file.close)


@scene
def one_tokenizer() -> None:
    texts = ["The old fox waits. " * 40, "ein Fuchs, ünd nøch einer \U0001f98a" * 30, "\x00\udcff" + "snow " * 2_000]
    with GGUFFile(demo.path()) as file:
        expected = [from_metadata(file.metadata).encode(text) for text in texts]
        tokenizer = from_metadata(file.metadata)

    def work(i: int) -> None:
        for turn in range(12):
            k = (i + turn) % len(texts)
            assert tokenizer.encode("".join([texts[k]])) == expected[k]
            assert tokenizer.encode(texts[k]) == expected[k]

    crowd(work)


@scene
def views_of_results() -> None:
    """Arrays over a graph's memory are dropped by any thread; afterwards nothing protects that memory."""
    with new_backend(threads=1) as backend, Context(backend) as ctx:
        x = ctx.input("f32", (64,))
        y = ops.sqr(x)
        ctx.forward(y)

        def look(_: int) -> None:
            for _ in range(3_000):
                with y.mapped() as array:
                    assert array[0] == 4
                del array

        for _ in range(3):
            ctx.alloc()
            x.set(np.full(64, 2, np.float32))
            ctx.compute()
            crowd(look)


@scene
def graphs_on_one_backend() -> None:
    """Built, computed and asked about in several threads, until another one closes the backend."""
    for _ in range(12):
        backend = new_backend(threads=1)
        built = threading.Semaphore(0)

        def work(i: int, backend: Backend = backend, built: threading.Semaphore = built) -> None:
            with contextlib.suppress(ClosedError):
                while True:
                    with Context(backend, max_nodes=64 + i) as ctx:
                        y = ops.sqr(ctx.from_floats([1.0 + i] * (64 << i)))
                        ctx.forward(y)
                        ctx.compute()
                        with contextlib.suppress(ShapeError):  # another one has got the memory meanwhile
                            assert (y.numpy() == (1 + i) ** 2).all()
                    assert backend.threads_in_use == 1
                    backend.graph_bytes()
                    built.release()

        def close(backend: Backend = backend, built: threading.Semaphore = built) -> None:
            for _ in range(20):
                built.acquire()
            backend.close()

        together(*(functools.partial(work, i) for i in range(THREADS)), close)


@scene
def one_engine() -> None:
    """Threads tokenize, generate, branch sessions and look; one closes the engine meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_llama(Path(folder) / "tiny.gguf", n_layer=1).path
        for _ in range(3):
            engine = Engine(path, num_ctx=256, parallel=4, threads=1)
            expected = engine.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=8)).tokens
            turns = threading.Semaphore(0)
            together(*_users(engine, expected, turns), functools.partial(_close_after, engine, turns))


def _users(engine: Engine, expected: tuple[int, ...], turns: threading.Semaphore) -> list[Callable[[], None]]:
    params = SamplingParams(temperature=0, max_tokens=8)

    def generate() -> None:
        assert engine.generate([1, 2, 3], params).tokens == expected
        turns.release()

    def stream() -> None:
        assert [token for chunk in engine.stream([1, 2, 3], params) for token in chunk.tokens] == list(expected)

    def branch() -> None:
        with engine.session() as session:
            session.append([1, 2])
            with session.fork() as fork:
                fork.append([3])
                assert fork.generate(params).tokens == expected

    def look() -> None:
        assert engine.detokenize(engine.tokenize("abc" * 100))
        assert engine.memory
        assert engine.metrics

    def until_closed(call: Callable[[], None]) -> None:
        with contextlib.suppress(ClosedError):
            while True:
                call()

    return [functools.partial(until_closed, call) for call in (generate, generate, stream, branch, look)]


def _close_after(engine: Engine, turns: threading.Semaphore) -> None:
    for _ in range(15):
        turns.acquire()
    engine.close()


if __name__ == "__main__":
    faulthandler.enable()
    SCENES[sys.argv[1]]()
