"""Engine.embed_image: one image or many, for threads and asyncio, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, Media, Text, demo
from ollama_engine.errors import (
    ClosedError,
    ConfigError,
    DeadlineError,
    ImageError,
    TokenizerError,
    UnsupportedInputError,
    UnsupportedModelError,
)
from tests.models.image_encoders import cases, converted
from tests.models.vision.pictures import Picture
from tests.support.waiting import join

pytest.importorskip("PIL", reason="Pillow is not installed")

PICTURES = [Picture(20 + i, 40 - i, i) for i in range(20)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    case = next(case for case in cases() if case.name == "clip-vision")
    with case.engine(converted(case, Path(tmp_path_factory.mktemp("clip")))) as opened:
        yield opened


def test_one_image_and_many(engine: Engine, tmp_path: Path) -> None:
    """More than are prepared at once, and an image as a path, bytes, a picture or an array."""
    rows = engine.embed_image([picture.draw() for picture in PICTURES])
    assert rows.shape == (20, engine.info.n_embd)
    assert rows.dtype == np.float32
    first = PICTURES[0]
    (tmp_path / "first.png").write_bytes(first.file)
    sources: list[Any] = [first.file, first.draw(), np.asarray(first.draw()), tmp_path / "first.png"]
    for source in sources:
        np.testing.assert_allclose(engine.embed_image(source), rows[0], atol=1e-6)
    assert engine.metrics.image_cache_bytes >= rows.nbytes
    assert engine.embed_image([]).shape == (0, engine.info.n_embd)


def test_asyncio_and_threads_share_it(engine: Engine) -> None:
    images = [picture.file for picture in PICTURES[:5]]
    expected = engine.embed_image(images)
    found: list[Any] = [None] * 4

    def embed(number: int) -> None:
        found[number] = engine.embed_image(images)

    threads = [threading.Thread(target=embed, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()

    async def several() -> list[Any]:
        return await asyncio.gather(*(engine.aembed_image(image) for image in images))

    rows = asyncio.run(several())
    join(*threads)
    for other in (*found, np.stack(rows)):
        np.testing.assert_allclose(other, expected, atol=1e-6)


def test_what_is_no_image_is_named(engine: Engine) -> None:
    good = PICTURES[0].file
    with pytest.raises(ImageError, match=r"images\[17\]: it is no image"):
        engine.embed_image([*[good] * 17, b"nothing"])
    with pytest.raises(ImageError, match="an image is a path"):
        engine.embed_image(3)  # type: ignore[arg-type]
    assert engine.embed_image(good).shape == (engine.info.n_embd,), "nothing else is disturbed"


def test_options(engine: Engine) -> None:
    good = PICTURES[0].file
    with pytest.raises(ConfigError, match="normalize is True or False"):
        engine.embed_image(good, normalize=2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="timeout"):
        engine.embed_image(good, timeout=-1)
    different = [Picture(900, 900 + i).file for i in range(6)]
    with pytest.raises(DeadlineError):
        engine.embed_image(different, timeout=0.01)
    longer = engine.embed_image(good, normalize=False)
    np.testing.assert_allclose(longer / np.linalg.norm(longer), engine.embed_image(good), atol=1e-6)


def test_a_model_of_images_answers_nothing_else(engine: Engine) -> None:
    with pytest.raises(UnsupportedModelError, match="gives no hidden states"):
        engine.embed("a text")
    with pytest.raises((ConfigError, TokenizerError), match="reads images"):
        engine.generate("a text")
    with pytest.raises(TokenizerError, match="reads no text"):
        engine.tokenize("a text")
    with pytest.raises(ConfigError, match="reads images and writes nothing"):
        engine.generate([Media(PICTURES[0].file)])
    assert engine.info.n_vocab == 0


def test_images_are_texts_of_their_own(engine: Engine) -> None:
    """`embed` takes them in segments, and so does `embeddings`."""
    files = [picture.file for picture in PICTURES[:3]]
    expected = engine.embed_image(files)
    np.testing.assert_array_equal(engine.embed([[Media(file)] for file in files]), expected)
    np.testing.assert_array_equal(engine.embed([Media(files[0])]), expected[0])
    whole = engine.embeddings([[Media(file)] for file in files])
    assert [(each.prompt_tokens, each.dropped_tokens) for each in whole] == [(0, 0)] * 3
    np.testing.assert_array_equal(np.stack([each.vector for each in whole]), expected)
    with pytest.raises(UnsupportedInputError, match="one vector of an image; give it alone"):
        engine.embed([Text("a fox: "), Media(files[0])])
    with pytest.raises(ConfigError, match="pooling is of the tokens of texts"):
        engine.embed([Media(files[0])], pooling="mean")
    with pytest.raises(UnsupportedInputError, match=r"texts\[1\]: this model makes one vector"):
        engine.embed([[Media(files[0])], [Media(files[0]), Media(files[1])]])


def test_a_model_of_texts_gives_no_vectors_of_images() -> None:
    told = pytest.raises(UnsupportedModelError, match="gives no vectors of images; CLIP and SigLIP models do")
    with Engine(demo.path(), threads=1, gpu_layers=0) as text, told:
        text.embed_image(PICTURES[0].file)
    with pytest.raises(ClosedError):
        text.embed_image(PICTURES[0].file)
