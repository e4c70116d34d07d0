"""Interrupts while images are read: they end the call, and nothing else."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from ollama_engine import Engine
from ollama_engine.multimodal.source import LOADING
from tests.robustness.test_faults import check_nothing_left
from tests.robustness.test_interrupts import (
    ENDLESS,
    SHIFT,
    check_no_session_left,
    greedy,
    interrupted_at,
    no_callbacks_of_others,
    wait_until_idle,
)
from tests.support.media_model import media_llama, picture
from tests.support.suite import scaled
from tests.support.tiny import write_tiny_llama

pytestmark = pytest.mark.usefixtures(no_callbacks_of_others.__name__)

STEP = scaled(11, quick=37)
"""Points between two interrupts: reading an image has more than a thousand."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    path = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1, seed=4).path
    with ExitStack() as stack:
        stack.enter_context(media_llama())
        engine = stack.enter_context(Engine(path, num_ctx=128, parallel=2, threads=1, kv_cache_type="f32", verify=True))
        yield engine
        check_no_session_left(engine)
        check_nothing_left(engine)


def images(folder: Path, number: int) -> Iterator[object]:
    """An image that was not seen before, in each form."""
    pixels = bytes((number * 7 + i) % 200 for i in range(12))
    (folder / "a.png").write_bytes(picture(pixels))
    yield folder / "a.png"
    yield PIL.Image.open(io.BytesIO(picture(pixels[::-1])))
    yield np.frombuffer(pixels[3:], np.uint8)[None] / 255


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("way", ["generate", "submit", "append"])
def test_an_interrupt_anywhere(engine: Engine, tmp_path: Path, way: str) -> None:
    def ask(image: object) -> Callable[[], object]:
        shown = [image]
        session = engine.session()
        return {
            "generate": lambda: engine.generate("a [img]", ENDLESS, images=shown, **SHIFT),  # type: ignore[dict-item]
            "submit": lambda: engine.submit("a [img]", greedy(2), images=shown).cancel(),  # type: ignore[dict-item]
            "append": lambda: session.append("a [img]", images=shown),  # type: ignore[dict-item]
        }[way]

    for image in images(tmp_path, 0):  # which imports
        request = engine.submit("x", greedy(1), images=[image])  # type: ignore[list-item]
        request.result(60)
    with engine.session() as session:
        session.append("a", images=[picture(b"abc")])
    before = list(warnings.filters)
    ended = set()
    for number in range(1, 4):
        expected = engine.generate("x", greedy(2)).tokens
        for form in range(3):
            for point in itertools.count(number, STEP):
                image = list(images(tmp_path, number * 1000 + point))[form]
                error = interrupted_at(ask(image), point)
                assert not LOADING.locked()
                wait_until_idle(engine)
                if error is None or point > 1500:
                    ended.add((form, error is None))
                    break
            assert engine.generate("x", greedy(2)).tokens == expected
        if number >= scaled(2, quick=1):
            break
    assert {form for form, _ in ended} == {0, 1, 2}
    assert warnings.filters == before
