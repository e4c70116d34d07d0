"""Memory is taken when the engine opens: whatever is asked for then finds it there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.config import FlashAttention
from ollama_engine.errors import NoMemoryError
from ollama_engine.kvcache.null import NullCache
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.execute.graph import GraphShape
from ollama_engine.runner.load.serving_memory import LONG_TEXTS
from ollama_engine.runner.observe.trace import Trace
from tests.models.encoders import mask_texts
from tests.support.suite import scaled
from tests.support.tiny import write_tiny_llama

PARALLEL, BATCH = 8, 64
STATUS = Path("/proc/self/statm")
GREEDY = SamplingParams(temperature=0, max_tokens=8, logit_bias={318: float("-inf"), 319: float("-inf")})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2).path


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with Engine(path, num_ctx=128, parallel=PARALLEL, batch_size=BATCH, threads=1) as made:
        yield made


def graph_bytes(engine: Engine) -> int:
    return sum(device.graph for device in engine.memory.devices)


def test_the_largest_graphs_are_reserved_before_the_first_request(path: str) -> None:
    """A full prompt batch, the largest of few rows, one token for each sequence, and a single one, over all history."""
    reserved: list[tuple[int, int]] = []
    texts: list[tuple[int, int]] = []
    build = Executor._build

    def noting(self: Executor, shape: GraphShape) -> object:
        n, n_outputs = shape.n_tokens, shape.n_outputs
        if isinstance(self._cache, NullCache):
            texts.append((n, n_outputs))
            assert shape.cache == (n, n), "each token sees all others"
            return build(self, shape)
        reserved.append((n, n_outputs))
        lists = min(n, PARALLEL) * PARALLEL * 128  # where all sequences share all cells
        assert shape.cache in ((n, 0, PARALLEL * 128), (n, lists)), "the whole history"
        return build(self, shape)

    with patch.object(Executor, "_build", noting), patch.object(Executor, "_compute", side_effect=AssertionError):
        engine = Engine(path, num_ctx=128, parallel=PARALLEL, batch_size=BATCH, threads=1)
    with engine:
        assert reserved == list(dict.fromkeys([(BATCH, 32), (min(BATCH, 64), 32), (PARALLEL, PARALLEL - 1), (1, 1)]))
        assert texts == [(BATCH, BATCH - 1), (128, 127)], "a full batch, and the longest text, whose need is reported"
        assert graph_bytes(engine) > 0


@pytest.mark.parametrize("flash", ["on", "off"])
@pytest.mark.parametrize(("num_ctx", "parallel", "batch_size"), [(128, 8, 64), (64, 1, 512), (512, 1, 64)])
def test_texts_of_a_batch_find_their_memory_there(
    path: str, num_ctx: int, parallel: int, batch_size: int, flash: FlashAttention
) -> None:
    sizes = {"num_ctx": num_ctx, "parallel": parallel, "batch_size": batch_size}
    with Engine(path, **sizes, flash_attention=flash, threads=1) as engine:
        before, answer = graph_bytes(engine), engine.generate([1, 2], GREEDY).tokens
        for n in {min(num_ctx, batch_size), 64, 63, 17, 1}:
            engine.embed([[5] * n] * (2 * batch_size // n))
            engine.embed([[5 + i] * (n - i % n) for i in range(20)])
        engine.embeddings([[5] * min(num_ctx, batch_size)], pooling="none")
        assert graph_bytes(engine) == before
        assert engine.generate([1, 2], GREEDY, cache=False).tokens == answer


@pytest.mark.parametrize("masked", [True, False], ids=["mask", "graph"])
def test_a_text_longer_than_a_batch_takes_more_or_is_refused_alone(
    path: str, monkeypatch: pytest.MonkeyPatch, masked: bool
) -> None:
    if masked:
        mask_texts(monkeypatch)
    with Engine(path, num_ctx=1024, parallel=1, batch_size=64, threads=1) as engine:
        before, answer = graph_bytes(engine), engine.generate([1, 2], GREEDY).tokens
        with monkeypatch.context() as patch:
            patch.setattr("ollama_engine.kvcache.null._CHECKED_FROM", 0)
            for module in ("kvcache.null",) if masked else ("ml.graph.computation", "ml.graph.backend"):
                patch.setattr(f"ollama_engine.{module}.available_bytes", lambda: 7)
            with pytest.raises(NoMemoryError):
                engine.embed([5] * 1000)
        assert graph_bytes(engine) == before
        assert engine.generate([1, 2], GREEDY, cache=False).tokens == answer
        engine.embed([5] * 1000)
        bound, masks = engine.memory.serving[LONG_TEXTS], 2 * 1024 * 1024 * masked
        assert before < graph_bytes(engine) < before + bound - masks
        engine.embed([5] * 1024)
        rows = 4 * 1024  # row numbers of the outputs, which the text does not need
        assert before + bound - masks - rows <= graph_bytes(engine) <= before + bound - masks
        assert engine.metrics.device_bytes == {d.device: d.by_kind for d in engine.memory.devices}
        assert engine.generate([1, 2], GREEDY, cache=False).tokens == answer


def rss() -> int:
    return int(STATUS.read_text().split()[1]) * 4096


@pytest.mark.skipif(not STATUS.exists(), reason="needs Linux's /proc")
def test_thousands_of_requests_allocate_nothing_new(engine: Engine) -> None:
    """Requests of all shapes, full batches and full contexts among them, beside a ballast that leaves no holes."""
    rng = np.random.default_rng(0)
    before = graph_bytes(engine)

    def ask(n: int) -> None:
        for begin in range(0, n, 100):
            prompts = [rng.integers(0, 300, int(size)).tolist() for size in rng.integers(1, 100, 100)]
            options = SamplingParams(max_tokens=4, seed=begin)
            requests = [engine.submit(prompt, options) for prompt in prompts]
            assert all(len(request.result(60).tokens) <= 4 for request in requests)

    # The timeline grows to its 4096 steps; a short one is full when the ballast is taken.
    engine._monitor.trace = Trace(50)
    full = SamplingParams(max_tokens=None, logit_bias={318: float("-inf"), 319: float("-inf")})
    engine.generate([[i] * 60 for i in range(PARALLEL)], full, on_overflow="error")
    ask(300)
    gc.collect()
    ballast = np.ones(16 << 20, dtype=np.uint8)
    held = rss()
    ask(scaled(2000, quick=300))
    gc.collect()
    assert graph_bytes(engine) == before
    assert rss() - held < 4 << 20
    assert ballast.all()
    assert engine.metrics.graphs_reused > 0
