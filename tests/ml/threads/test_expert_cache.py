"""ExpertCache: products with experts that are read when they are chosen are those of weights in memory, to the bit."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.errors import ClosedError, ComputeError, ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.threads.expert_cache import ExpertCache
from ollama_engine.ml.weights.kernel_choice import expert_product
from tests.ml.ops.small_batch_weights import raw_weights
from tests.support.emulated import NEEDS_ADVICE
from tests.support.waiting import eventually, status_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="experts are given back on Linux only")

BLOCKS, EXPERTS, USED, WIDE, HIDDEN = 3, 12, 3, 128, 96
OFFSET = 4096 + 32
"""Of the first matrix: not at a page, as in files."""
RNG = np.random.default_rng(20_261_126)


class Mixture:
    """A file with two matrices of experts for each block, in memory and in a cache."""

    def __init__(self, backend: Backend, folder: Path, dtype: str, undo: ExitStack) -> None:
        self.path = folder / "experts.bin"
        shapes = [(WIDE, HIDDEN, EXPERTS), (HIDDEN, WIDE, EXPERTS)] * BLOCKS
        raw = [raw_weights(dtype, shape[1] * EXPERTS, shape[0]) for shape in shapes]
        places = OFFSET + np.cumsum([0, *(len(r.tobytes()) for r in raw[:-1])])
        self.path.write_bytes(bytes(OFFSET) + b"".join(r.tobytes() for r in raw))
        self.cache = ExpertCache()
        undo.callback(self.cache.close)
        self.memory = memory = self.cache.add_file(self.path)
        self.plain, self.read = (undo.enter_context(Storage(backend, len(shapes))) for _ in range(2))
        for i, shape in enumerate(shapes):
            self.plain.add(str(i), dtype, shape)
            self.read.add(str(i), dtype, shape)
        self.plain.allocate(0)
        self.read.map(memory, {str(i): int(place) for i, place in enumerate(places)})
        for i in range(len(shapes)):
            self.plain[str(i)].set_bytes(raw[i])
            nbytes = len(raw[i].tobytes())
            self.read[str(i)].cached = self.cache.add(i // 2, EXPERTS, 0, int(places[i]), nbytes)

    def graph(self, ctx: Context, storage: Storage, tokens: int) -> tuple[Tensor, list[Tensor], Tensor]:
        """Input, chosen experts, result. Block 1's are guessed right, and block 2's to be those of block 1."""
        x = ctx.input("f32", (WIDE, 1, tokens))
        ids = [ctx.input("i32", (USED, tokens)) for _ in range(BLOCKS)]
        y = x
        for block in range(BLOCKS):
            if storage is self.read and block + 1 < BLOCKS:
                ctx.expand(ops.guess_experts(storage[str(2 * block + 3)], ids[1]))
            y = expert_product(storage[str(2 * block)], y, ids[block])
            y = expert_product(storage[str(2 * block + 1)], y, ids[block])
        ctx.forward(y)
        return x, ids, y


def computed(backend: Backend, mixture: Mixture, storage: Storage, rounds: int, tokens: int) -> list[bytes]:
    """The results of so many steps with one graph, each with other experts."""
    rng, results = np.random.default_rng(5), []
    with Context(backend) as ctx:
        x, ids, y = mixture.graph(ctx, storage, tokens)
        for _ in range(rounds):
            ctx.alloc()
            x.set(rng.standard_normal((tokens, 1, WIDE), dtype=np.float32))
            for each in ids:
                each.set(chosen(rng, tokens))
            ctx.compute()
            results.append(y.numpy().tobytes())
    return results


def chosen(rng: np.random.Generator, tokens: int) -> NDArray[np.int32]:
    return np.stack([rng.permutation(EXPERTS)[:USED] for _ in range(tokens)]).astype(np.int32)


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("dtype", ["q8_0", "q4_0", "f16"])
def test_experts_from_the_file_give_the_same_bits(
    backend: Backend, tmp_path: Path, dtype: str, tokens: int, undo: ExitStack
) -> None:
    """Room for a block, for two, and for all of them: more room, fewer misses."""
    mixture, missed = Mixture(backend, tmp_path, dtype, undo), []
    wanted = computed(backend, mixture, mixture.plain, 25, tokens)
    for blocks in (1, 2, BLOCKS):
        mixture.cache.drop()
        mixture.cache.limit(blocks * (mixture.cache.layer_bytes + 1))
        before = mixture.cache.counts()["misses"]
        assert computed(backend, mixture, mixture.read, 25, tokens) == wanted
        missed.append(mixture.cache.counts()["misses"] - before)
    assert missed[0] > missed[1] > missed[2]
    assert missed[2] <= BLOCKS * EXPERTS  # each is read once


def test_memory_stays_within_the_limit(backend: Backend, tmp_path: Path, undo: ExitStack) -> None:
    """Pages of experts that made room are given back. Those at the ends of an expert may stay."""
    mixture = Mixture(backend, tmp_path, "f16", undo)
    mixture.cache.limit(mixture.cache.layer_bytes)
    before = anonymous_bytes()
    computed(backend, mixture, mixture.read, 40, 7)
    ends = 2 * BLOCKS * EXPERTS * os.sysconf("SC_PAGE_SIZE")
    assert anonymous_bytes() - before < mixture.cache.layer_bytes + ends + (1 << 20)


def anonymous_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def test_the_busiest_experts_stay(backend: Backend, tmp_path: Path, undo: ExitStack) -> None:
    """Two experts that are always chosen are read once, whatever the others are."""
    mixture = Mixture(backend, tmp_path, "q8_0", undo)
    mixture.cache.limit(mixture.cache.layer_bytes)
    with Context(backend) as ctx:
        x, ids, _ = mixture.graph(ctx, mixture.read, 1)
        for step in range(60):
            if step == 30:  # how often each is used is known by then
                before = mixture.cache.counts()
            ctx.alloc()
            x.set(RNG.standard_normal((1, 1, WIDE), dtype=np.float32))
            for each in ids:
                each.set(np.array([[0, 1, 2 + RNG.integers(EXPERTS - 2)]], dtype=np.int32))
            ctx.compute()
    after = mixture.cache.counts()
    assert after["uses"] - before["uses"] == 30 * BLOCKS * USED
    assert after["misses"] - before["misses"] <= 30 * BLOCKS  # the third


def guessed(backend: Backend, mixture: Mixture, guess: list[int], chosen: list[int]) -> None:
    """A step of block 0, with a guess of block 1; once nothing is left to read, a step of block 1."""
    with Context(backend) as first, Context(backend) as second:
        for ctx, block, named in ((first, 0, [0, 1, 2]), (second, 1, chosen)):
            x, ids, guesses = ctx.input("f32", (WIDE, 1, 1)), *(ctx.input("i32", (USED, 1)) for _ in range(2))
            if block == 0:
                ctx.expand(ops.guess_experts(mixture.read["3"], guesses))
            y = expert_product(mixture.read[str(2 * block)], x, ids)
            ctx.forward(expert_product(mixture.read[str(2 * block + 1)], y, ids))
            ctx.alloc()
            x.set(np.ones((1, 1, WIDE), dtype=np.float32))
            ids.set(np.array([named], dtype=np.int32))
            if block == 0:
                guesses.set(np.array([guess], dtype=np.int32))
            ctx.compute()
            eventually(lambda: mixture.cache.counts()["reading"] == 0)


def test_a_guess_is_read_before_it_is_chosen(backend: Backend, tmp_path: Path, undo: ExitStack) -> None:
    mixture = Mixture(backend, tmp_path, "q8_0", undo)
    guessed(backend, mixture, [5, 6, 7], [7, 5, 8])
    counts = mixture.cache.counts()
    assert {name: counts[name] for name in ("misses", "guesses", "guessed_right", "ahead", "ahead_used")} == {
        "misses": USED + 1, "guesses": 3, "guessed_right": 2, "ahead": 3, "ahead_used": 2,
    }  # fmt: skip


def test_ranks_whose_guesses_are_wrong_are_not_read(backend: Backend, tmp_path: Path, undo: ExitStack) -> None:
    """The best guess is right each time, the others never."""
    mixture = Mixture(backend, tmp_path, "q8_0", undo)
    for _ in range(20):
        mixture.cache.drop()
        guessed(backend, mixture, [5, 6, 7], [5, 8, 9])
    counts = mixture.cache.counts()
    assert (counts["guesses"], counts["guessed_right"]) == (60, 20)
    assert (counts["ahead"], counts["ahead_used"]) == (20 + 2, 20)


def test_a_guess_takes_no_memory_of_the_layer_that_computes(backend: Backend, tmp_path: Path, undo: ExitStack) -> None:
    mixture = Mixture(backend, tmp_path, "q8_0", undo)
    mixture.cache.limit(mixture.cache.layer_bytes * USED // EXPERTS)
    guessed(backend, mixture, [5, 6, 7], [5, 6, 7])
    counts = mixture.cache.counts()
    assert (counts["misses"], counts["ahead"], counts["guessed_right"]) == (2 * USED, 0, 3)


def test_a_file_that_cannot_be_read_fails_the_step(backend: Backend, tmp_path: Path, undo: ExitStack) -> None:
    """And no later one, once it can be."""
    mixture = Mixture(backend, tmp_path, "q8_0", undo)
    wanted = computed(backend, mixture, mixture.plain, 2, 1)
    whole = mixture.path.read_bytes()
    mixture.path.write_bytes(whole[: OFFSET + 100])
    with pytest.raises(ComputeError, match="experts could not be read from the model's file"):
        computed(backend, mixture, mixture.read, 1, 1)
    mixture.path.write_bytes(whole)
    assert computed(backend, mixture, mixture.read, 2, 1) == wanted


@NEEDS_ADVICE
def test_a_forked_child_shares_no_page_and_waits_for_no_thread(
    backend: Backend, tmp_path: Path, undo: ExitStack
) -> None:
    """What is read past the page cache could land in a page that it shares (open(2))."""
    mixture = Mixture(backend, tmp_path, "q8_0", undo)
    computed(backend, mixture, mixture.read, 2, 7)
    assert any(mixture.memory[:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python dislikes forks where there are threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            mixture.cache.close()
            status = int(any(mixture.memory[:]))
        finally:  # never on into pytest
            os._exit(status)
    assert status_of(child) == 0


def test_what_is_refused(backend: Backend, tmp_path: Path, undo: ExitStack) -> None:
    mixture = Mixture(backend, tmp_path, "q8_0", undo)
    with Context(backend) as ctx:
        ids, floats = ctx.input("i32", (USED, 2)), ctx.input("f32", (USED, 2))
        with pytest.raises(ShapeError, match="is not read by an ExpertCache"):
            ops.await_experts(mixture.plain["0"], ids)
        with pytest.raises(ShapeError, match="ids must be i32"):
            ops.await_experts(mixture.read["0"], floats)
        with pytest.raises(ShapeError, match="guess_experts: ids must be i32"):
            ops.guess_experts(mixture.read["0"], floats)
    mixture.cache.close()
    mixture.cache.close()
    with pytest.raises(ClosedError):
        mixture.cache.drop()
