"""Images are encoded once, one between two steps, and shared by all who need them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.errors import ClosedError, ImageError, ModelFormatError, NoMemoryError
from ollama_engine.input import PreparedImage
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from tests.engine.test_media import AFTER, BEFORE, CAT, DOG, PATIENCE, as_tokens, greedy, lone, open_engine, prompt
from tests.support.engine_thread import idle
from tests.support.media_model import BROKEN, IMAGE_ROWS, FakeVision, MediaLlama, held_encoding
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import eventually

KINDS = ("flash", "bidirectional", "wide", "loose", "cross")
EMBEDDING_BYTES = 12 * 128 * 4
"""Of CAT or DOG: pixels x n_embd x f32."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, n_embd=128, seed=4).path


@pytest.fixture(params=slow_except(KINDS, "flash", "cross"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(path: str, kind: str) -> Iterator[Engine]:
    with ExitStack() as stack:
        yield open_engine(stack, path, kind)


def image(number: int) -> bytes:
    """The pixels of some image, another for each number."""
    return bytes((number >> shift & 3) + 40 for shift in range(0, 24, 2))


# -- encoded once ------------------------------------------------------------------------------------------------------


def test_sequences_with_the_same_image_share_one_encoding(path: str, kind: str) -> None:
    with ExitStack() as stack:
        engine = open_engine(stack, path, kind, parallel=8)
        prompts = [prompt([number], CAT, AFTER) for number in range(1, 9)]
        answers = engine.generate(prompts, greedy())
        assert MediaLlama.encoded == [CAT]
        assert MediaLlama.prepared == [CAT]
        assert (engine.metrics.encoded_images, engine.metrics.image_hits) == (1, 7)
        assert [answer.tokens for answer in answers] == [lone(engine, given) for given in prompts]
        assert MediaLlama.encoded == [CAT]


def test_a_cached_prefix_needs_no_encoding(engine: Engine) -> None:
    """And a repeated image is not even decoded."""
    first = engine.generate(prompt(BEFORE, CAT, AFTER), greedy())
    with patch.object(FakeVision, "preprocess", side_effect=AssertionError), \
            patch.object(FakeVision, "encode_multimodal", side_effect=AssertionError):  # fmt: skip
        engine._loaded.images.cache.__init__(0)  # type: ignore[union-attr,misc]  # its embeddings are gone
        again = engine.generate(prompt(BEFORE, CAT, AFTER), greedy())
    assert again.tokens == first.tokens
    assert again.usage.cached_tokens == first.usage.prompt_tokens - 1
    assert engine.metrics.encoded_images == 1


def test_a_small_budget_gives_the_same_answers(path: str, kind: str) -> None:
    """Images are encoded again, the embeddings in memory stay within the budget."""
    given = [prompt([n], image(n % 5), AFTER, image(n % 3), [9]) for n in range(12)]
    with ExitStack() as stack:
        engine = open_engine(stack, path, kind, num_ctx=64)
        expected = [answer.tokens for answer in engine.generate(given, greedy())]
        assert engine.metrics.encoded_images == 5
        each = engine.metrics.image_cache_bytes // 5
    for budget in (0, 2 * each):
        with ExitStack() as stack:
            engine = open_engine(stack, path, kind, num_ctx=64, image_cache_bytes=budget)
            assert [answer.tokens for answer in engine.generate(given, greedy())] == expected
            assert engine.metrics.encoded_images > 5
            assert engine.metrics.image_cache_bytes <= max(budget, each)


def test_the_budget_is_checked(path: str) -> None:
    with pytest.raises(ValueError, match="image_cache_bytes is a whole number from 0"):
        Engine(path, image_cache_bytes=-1)


def test_an_image_larger_than_a_batch_is_encoded_once(path: str) -> None:
    """Its embeddings are cut, batch by batch, also where the cache keeps nothing."""
    large = bytes(40 + i % 50 for i in range(70))
    for budget in (0, 1 << 20):
        with ExitStack() as stack:
            engine = open_engine(stack, path, "loose", image_cache_bytes=budget, batch_size=16)
            requests = [engine.submit(prompt(before, picture, AFTER), greedy())
                        for before, picture in (([1], large), ([2], CAT), ([3], large[::-1]))]  # fmt: skip
            found = [request.result(PATIENCE).tokens for request in requests]
            assert sorted(MediaLlama.encoded) == sorted([large, CAT, large[::-1]])
            expected = [as_tokens([1], large, AFTER), as_tokens([2], CAT, AFTER), as_tokens([3], large[::-1], AFTER)]
            assert found == [engine.generate(tokens, greedy(), cache=False).tokens for tokens in expected]


ENCODE = FakeVision.encode_multimodal
DEPTH = 40
"""Nodes of a deep tower."""


def deep(self: FakeVision, ctx: Context, prepared: PreparedImage) -> Tensor:
    """The same embeddings, after as many nodes as a tower of several layers has."""
    x = ENCODE(self, ctx, prepared)
    for _ in range(DEPTH):
        x = ops.scale(x, 1)
    return x


# -- a long conversation -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flash", "bidirectional", "cross"], indirect=True)
def test_200_images_in_one_conversation(path: str, kind: str) -> None:
    """Beyond the context: its memory stays flat, and no graph runs out of nodes.

    Trap: a graph that takes the images of a conversation one after the other. That of one image has a small part of
    the nodes that there may be, that of 200 would have more.
    """
    budget = 8 * (EMBEDDING_BYTES if kind != "cross" else EMBEDDING_BYTES // 3)
    with ExitStack() as stack:
        stack.enter_context(patch.object(FakeVision, "encode_multimodal", deep))
        engine = open_engine(stack, path, kind, parallel=1, image_cache_bytes=budget, verify=False)
        assert 10 * DEPTH < engine._loaded.backend.max_nodes < 200 * DEPTH
        said: list[list[int] | bytes] = []
        images = engine._loaded.images
        assert images is not None
        for turn in range(200):
            said += [[turn % 30 + 1], image(turn)]
            answer = engine.generate(prompt(*said), greedy(6), on_overflow="shift", num_keep=1)
            said.append(list(answer.tokens))
            assert answer.finish_reason == "length"
            assert images.cache.nbytes <= budget
            assert len(images.cache._alive) <= 8 + 1
            assert images._prepared._held == 0
        assert {*MediaLlama.encoded} == {image(turn) for turn in range(200)}
        assert engine.metrics.shifts > 10


WIDTH = 512
"""How often a wide tower repeats the embeddings."""


def wide(self: FakeVision, ctx: Context, prepared: PreparedImage) -> Tensor:
    """The same embeddings, after a tensor that is WIDTH times as large."""
    x = ENCODE(self, ctx, prepared)
    n_embd, n = x.dim(0), x.dim(1)
    return ops.view(ops.repeat(x, n_embd, WIDTH * n, 1), (n_embd, n), (4 * n_embd,), 0)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_the_worst_case_is_taken_at_start(path: str, kind: str) -> None:
    """The largest image, and a batch full of embeddings. The tower takes more than the text, which would hide it."""
    with ExitStack() as stack:
        text = sum(open_engine(stack, path, kind)._loaded.backend.graph_bytes().values())
    with ExitStack() as stack:
        stack.enter_context(patch.object(FakeVision, "encode_multimodal", wide))
        engine = open_engine(stack, path, kind)
        backend = engine._loaded.backend
        before = backend.graph_bytes(), backend.work_bytes()
        largest = EMBEDDING_BYTES // 12 * (IMAGE_ROWS if kind == "cross" else 24) * WIDTH
        assert text < largest <= sum(before[0].values())
        large = [bytes(40 + (i + n) % 50 for i in range(24)) for n in range(3)]
        engine.generate([prompt(each, CAT, AFTER) for each in large], greedy(20))
        engine.generate(prompt(*[[1], CAT] * 4), greedy(3))
        assert (backend.graph_bytes(), backend.work_bytes()) == before


class WideVision(FakeVision):
    """Another model's: its embeddings are too long."""

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        return ops.concat(*[super().encode_multimodal(ctx, image)] * 2, axis=0)


def test_a_vision_part_of_another_model(path: str) -> None:
    """Trap: one projector fits several models but for its width. It fails at start, and says so."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(MediaLlama, "vision", WideVision))
        with pytest.raises(ModelFormatError, match="embeddings of 256 numbers, and the text model takes 128"):
            open_engine(stack, path, "flash")


class NoRoom(FakeVision):
    """Its largest image takes more memory than there is."""

    def largest_image(self) -> PreparedImage:
        return PreparedImage({"pixels": np.zeros(24, np.int32)}, 24)

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        x = super().encode_multimodal(ctx, image)
        return ops.view(ops.repeat(x, 128, 24 << 20, 64), (128, 24), (512,), 0)


def test_unallocatable_inputs_fail_loudly(path: str) -> None:
    """Trap: an image for which there is no memory was skipped, and the answer made up. Here nothing is loaded."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(MediaLlama, "vision", NoRoom))
        with pytest.raises(NoMemoryError, match="does not fit"):
            open_engine(stack, path, "flash")


def test_an_image_without_memory_ends_its_request(engine: Engine) -> None:
    """Trap: the same, with an image that comes later."""
    expected = lone(engine, prompt(BEFORE, DOG))
    with patch.object(FakeVision, "encode_multimodal", side_effect=NoMemoryError("no memory for an image")), \
            pytest.raises(NoMemoryError, match="no memory for an image"):  # fmt: skip
        engine.generate(prompt(BEFORE, CAT), greedy())
    assert lone(engine, prompt(BEFORE, DOG)) == expected


# -- beside others -----------------------------------------------------------------------------------------------------


def test_at_most_one_image_between_two_steps(path: str) -> None:
    """An answer that is being written goes on between any two images."""
    steps_at: list[int] = []
    with ExitStack() as stack:
        engine = open_engine(stack, path, "flash", num_ctx=512)

        def encode(self: FakeVision, ctx: Context, prepared: PreparedImage) -> Tensor:
            steps_at.append(engine._core.metrics().steps)
            return original(self, ctx, prepared)

        original = FakeVision.encode_multimodal
        stack.enter_context(patch.object(FakeVision, "encode_multimodal", encode))
        running = engine.submit([1, 2, 3], greedy(1_000_000), on_overflow="shift")
        next(running)
        others = [engine.submit(prompt(*[image(8 * n + i) for i in range(4)]), greedy(2)) for n in range(2)]
        for other in others:
            other.result(PATIENCE)
        running.cancel()
    assert len(steps_at) == 8
    assert all(before < after for before, after in itertools.pairwise(steps_at))


def test_cancelled_while_its_images_are_encoded(engine: Engine) -> None:
    with held_encoding(PATIENCE) as (encoding, go_on):
        request = engine.submit(prompt(BEFORE, *[image(n) for n in range(6)]), greedy())
        assert encoding.wait(PATIENCE)
        request.cancel()
        go_on.set()
        with pytest.raises(ClosedError):
            request.result(PATIENCE)
    assert len(MediaLlama.encoded) == 1
    idle(engine)
    assert lone(engine, prompt(BEFORE, CAT)) == lone(engine, prompt(BEFORE, CAT))


def test_a_failing_image_ends_those_who_need_it(engine: Engine) -> None:
    expected = lone(engine, prompt(BEFORE, DOG, CAT))
    requests = [engine.submit(prompt(BEFORE, picture, CAT), greedy()) for picture in (BROKEN, DOG, BROKEN)]
    for request in (requests[0], requests[2]):
        with pytest.raises(ImageError, match="the image is broken"):
            request.result(PATIENCE)
    assert requests[1].result(PATIENCE).tokens == expected
    assert engine.metrics.requests["error"] == 2


def test_texts_to_embed_and_images_take_turns(path: str) -> None:
    with ExitStack() as stack:
        engine = open_engine(stack, path, "flash")
        given = [prompt([n], image(n), image(n + 100), AFTER) for n in range(10)]
        requests = [engine.submit(each, greedy(3)) for each in given]
        vectors = engine.embed([[1, 2, n] for n in range(40)])
        found = [request.result(PATIENCE).tokens for request in requests]
        assert len(vectors) == 40
        assert found == [lone(engine, each, 3) for each in given]


def test_a_higher_priority_is_encoded_first(path: str) -> None:
    order: list[bytes] = []
    with ExitStack() as stack:
        engine = open_engine(stack, path, "flash")
        gate = threading.Event()
        original = FakeVision.encode_multimodal

        def encode(self: FakeVision, ctx: Context, prepared: PreparedImage) -> Tensor:
            assert gate.wait(PATIENCE)
            order.append(bytes(prepared.arrays["pixels"].astype("uint8")))
            return original(self, ctx, prepared)

        stack.enter_context(patch.object(FakeVision, "encode_multimodal", encode))
        first = engine.submit(prompt(image(0)), greedy(1))
        eventually(lambda: engine.metrics.running)
        low = engine.submit(prompt(image(1), image(2)), greedy(1), priority=-1)
        high = engine.submit(prompt(image(3), image(4)), greedy(1), priority=1)
        gate.set()
        for request in (first, low, high):
            request.result(PATIENCE)
    assert order.index(image(4)) < order.index(image(1))


def test_decoding_text_is_planned_as_before(engine: Engine) -> None:
    """With an image in its prompt, too: an answer's steps follow each other without planning."""
    with patch.object(engine._core, "_plan", wraps=engine._core._plan) as planned:
        engine.generate(prompt(BEFORE, CAT, AFTER), greedy(30), draft="off")
        n_plans: Any = planned.call_count
    assert n_plans <= 8
