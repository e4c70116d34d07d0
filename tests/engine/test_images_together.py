"""New images of one prompt share a step: encoded one by one first, then computed together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import Engine
from tests.engine.test_image_cache import EMBEDDING_BYTES, image
from tests.engine.test_media import AFTER, PATIENCE, greedy, lone, open_engine, prompt
from tests.support.media_model import MediaLlama
from tests.support.tiny import write_tiny_llama

N_IMAGE = 12 + 2
"""Inputs of an image, with those around it."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, n_embd=128, seed=4).path


@contextmanager
def images_of_steps(engine: Engine) -> Iterator[list[int]]:
    """How many images each step with images computed, in order."""
    found: list[int] = []
    executor = engine._core.executor
    launch = executor.launch

    def launched(tokens: Any, media: Any) -> None:
        assert executor._prepared is not None
        n = len(executor._prepared.batch.media)
        found.extend([n] if n else [])
        launch(tokens, media)

    with patch.object(executor, "launch", launched):
        yield found


def test_8_images_of_one_prompt(path: str) -> None:
    given = prompt(*[image(n) for n in range(8)], AFTER)
    for kind in ("flash", "bidirectional"):
        with ExitStack() as stack:
            engine = open_engine(stack, path, kind, batch_size=128, num_ctx=256)
            with images_of_steps(engine) as together:
                answer = engine.generate(given, greedy(1))
            assert (len(MediaLlama.encoded), together, engine.metrics.steps) == (8, [8], 1)
            narrow = open_engine(stack, path, kind, batch_size=16, num_ctx=256)
            with images_of_steps(narrow) as apart:
                assert narrow.generate(given, greedy(1)).tokens == answer.tokens
            assert sum(apart) >= 8 <= len(apart)


def test_4_sequences_with_two_images_each(path: str) -> None:
    given = [prompt(image(2 * n), image(2 * n + 1), AFTER) for n in range(4)]
    with ExitStack() as stack:
        engine = open_engine(stack, path, "flash", parallel=4, batch_size=128)
        with images_of_steps(engine) as together:
            found = [answer.tokens for answer in engine.generate(given, greedy(4))]
        assert (len(MediaLlama.encoded), sum(together)) == (8, 8)
        assert all(n % 2 == 0 for n in together), "no step has one image of two"
        # A step for each prompt at most, and those that decode: they are the same for all, or beside a prompt.
        assert engine.metrics.steps <= 4 + 3
        assert found == [lone(engine, each, 4) for each in given]


def test_as_many_as_a_batch_holds(path: str) -> None:
    """A batch of 32 holds two images. No embeddings are held beyond those of one batch, where none are cached."""
    held: list[int] = []
    with ExitStack() as stack:
        engine = open_engine(stack, path, "bidirectional", batch_size=32, num_ctx=256, image_cache_bytes=0)
        images = engine._loaded.images
        assert images is not None
        alive = images.cache._alive
        step = engine._core.step

        def stepped() -> None:
            step()
            held.append(sum(rows.nbytes for rows in alive.values()))

        stack.enter_context(patch.object(engine._core, "step", stepped))
        with images_of_steps(engine) as together:
            engine.generate(prompt(*[image(n) for n in range(8)], AFTER), greedy(1))
        assert (len(MediaLlama.encoded), together) == (8, [2, 2, 2, 2])
        bound = engine.memory.serving["embeddings of images"]
        assert 2 * EMBEDDING_BYTES <= max(held) <= bound
        assert bound < 16 * EMBEDDING_BYTES, "what three requests hold, and no more"


def test_beside_an_answer_fewer_wait(path: str) -> None:
    """A step beside an answer computes 63 inputs of a prompt, so it does not wait for images behind them."""
    with ExitStack() as stack:
        engine = open_engine(stack, path, "flash", batch_size=256, num_ctx=512)
        running = engine.submit([1, 2, 3], greedy(1_000_000), on_overflow="shift")
        next(running)
        with images_of_steps(engine) as together:
            engine.submit(prompt(*[image(n) for n in range(12)], AFTER), greedy(1)).result(PATIENCE)
        running.cancel()
        assert sum(together) >= 12
        assert 12 // 5 <= len(together) <= 12 // 4 + 1


def test_two_images_beside_the_text_share_a_batch(path: str) -> None:
    """With cross-attention. Memory for storing two at once was taken at start."""
    given = prompt(*[image(n) for n in range(5)], AFTER)
    with ExitStack() as stack:
        engine = open_engine(stack, path, "cross", batch_size=128, num_ctx=256)
        backend = engine._loaded.backend
        before = backend.graph_bytes()
        with images_of_steps(engine) as together:
            answer = engine.generate(given, greedy(6))
        assert (len(MediaLlama.encoded), together) == (5, [2, 2, 1])
        assert backend.graph_bytes() == before
        apart = open_engine(stack, path, "cross permuted", batch_size=128, num_ctx=256, flash_attention="auto")
        with images_of_steps(apart) as alone:
            assert apart.generate(given, greedy(6)).tokens == answer.tokens
        assert alone == [1] * 5
