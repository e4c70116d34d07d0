"""Random histories: prompts with images, budgets of any size, cancelling, priorities, sessions, texts to embed."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import pytest

from ollama_engine import Engine, Request
from ollama_engine.errors import ClosedError, ImageError
from tests.engine.test_image_cache import EMBEDDING_BYTES, image
from tests.engine.test_media import PATIENCE, greedy, open_engine, prompt
from tests.support.media_model import BROKEN
from tests.support.suite import scaled, slow_except
from tests.support.tiny import write_tiny_llama

KINDS = ("flash", "bidirectional", "wide", "loose", "cross", "window")
ROUNDS = scaled(12, quick=2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, n_embd=128, seed=4).path


def drawn_prompt(draw: random.Random) -> list[list[int] | bytes]:
    parts: list[list[int] | bytes] = []
    for _ in range(draw.randint(1, 3)):
        parts.append([draw.randint(1, 300) for _ in range(draw.choice((1, 3, 20)))])
        parts += [image(draw.randint(0, 6))] * draw.choice((0, 1, 1, 2))
    return parts if draw.random() < 0.5 else [*parts, [draw.randint(1, 300)]]


@pytest.mark.parametrize("kind", slow_except(KINDS, "flash", "cross"))
def test_answers_do_not_depend_on_others(path: str, kind: str) -> None:
    draw = random.Random(f"images {kind}")
    for _ in range(ROUNDS):
        prompts = [drawn_prompt(draw) for _ in range(8)]
        budget = draw.choice((0, EMBEDDING_BYTES, 3 * EMBEDDING_BYTES, 1 << 30))
        options: dict[str, Any] = {"parallel": draw.randint(1, 4), "num_ctx": 160, "batch_size": draw.choice((16, 40))}
        with ExitStack() as stack:
            engine = open_engine(stack, path, kind, image_cache_bytes=budget, **options)
            expected = [engine.generate(prompt(*parts), greedy(6), cache=False).tokens for parts in prompts]
            history(engine, draw, prompts, expected)


def history(engine: Engine, draw: random.Random, prompts: list[Any], expected: list[tuple[int, ...]]) -> None:
    asked: list[tuple[int, Request, bool]] = []
    for _ in range(24):
        number, what = draw.randrange(len(prompts)), draw.random()
        given = prompt(*prompts[number])
        if what < 0.1:
            engine.embed([[1, 2, 3]] * 3)
        elif what < 0.2:
            broken = engine.submit([*given, *prompt(BROKEN)], greedy(3))
            with pytest.raises(ImageError):
                broken.result(PATIENCE)
        elif what < 0.3:
            with engine.session() as session:
                session.append(given)
                assert session.generate(greedy(6)).tokens == expected[number]
        else:
            request = engine.submit(given, greedy(6), priority=draw.choice((0, 0, 1)), cache=draw.random() < 0.7)
            cancelled = draw.random() < 0.2
            if cancelled:
                request.cancel()
            asked.append((number, request, cancelled))
    for number, request, cancelled in asked:
        try:
            assert request.result(PATIENCE).tokens == expected[number]
        except ClosedError:
            assert cancelled
