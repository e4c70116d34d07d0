"""Images that are only encoded: beside prompts, in order, cancelled, failing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine import Engine
from ollama_engine.errors import ClosedError, DeadlineError, ImageError
from ollama_engine.input import PreparedImage
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.runner.embed.call import AHEAD
from tests.engine.test_image_cache import image
from tests.engine.test_media import AFTER, CAT, DOG, PATIENCE, greedy, open_engine, prompt
from tests.support.media_model import BROKEN, REFUSED, FakeVision, MediaLlama, held_encoding, picture
from tests.support.tiny import write_tiny_llama


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, n_embd=128, seed=4).path


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with ExitStack() as stack:
        yield open_engine(stack, path, "flash")


def call(engine: Engine, *images: bytes, timeout: float | None = None) -> Any:
    return engine.embed_image([picture(each) for each in images], timeout=timeout, normalize=False)


def test_rows_come_in_the_order_of_images(engine: Engine) -> None:
    images = [image(n) for n in range(20)]
    found = call(engine, *images, CAT, images[3])
    assert MediaLlama.encoded == [*images, CAT]
    assert (engine.metrics.encoded_images, engine.metrics.image_hits) == (21, 1)
    assert engine.metrics.requests_by_kind["embedding"]["stop"] == 1
    for rows, pixels in zip(found, [*images, CAT, images[3]], strict=True):
        np.testing.assert_array_equal(rows, call(engine, pixels)[0])
    assert call(engine).shape == (0, engine.info.n_embd)
    engine.generate(prompt(CAT, AFTER), greedy(2))
    assert MediaLlama.encoded.count(CAT) == 1


def test_asyncio(engine: Engine) -> None:
    async def both() -> None:
        both = engine.aembed_image([picture(CAT), picture(DOG)])
        found, others = await asyncio.gather(both, engine.aembed_image([picture(DOG)]))
        np.testing.assert_array_equal(found[1], others[0])

    asyncio.run(both())
    assert sorted(MediaLlama.encoded) == [CAT, DOG]


def test_beside_prompts_and_texts(engine: Engine) -> None:
    requests = [engine.submit(prompt([n], image(n), AFTER), greedy(6)) for n in range(8)]
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(  # type: ignore[misc]
            len(call(engine, *[image(50 * n + i) for i in range(9)]))))
        for n in range(3)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    engine.embed([[1, 2, n] for n in range(20)])
    for thread in threads:
        thread.join(PATIENCE)
    assert results == [9, 9, 9]
    assert all(request.result(PATIENCE).finish_reason == "length" for request in requests)


def slowly(self: FakeVision, ctx: Context, prepared: PreparedImage) -> Tensor:
    time.sleep(0.01)
    return encode(self, ctx, prepared)


encode, preprocess = FakeVision.encode_multimodal, FakeVision.preprocess


def test_few_pictures_are_prepared_ahead(engine: Engine) -> None:
    ahead: list[int] = []

    def counted(self: FakeVision, given: Any) -> PreparedImage:
        ahead.append(len(ahead) + 1 - len(MediaLlama.encoded))
        return preprocess(self, given)

    with patch.object(FakeVision, "encode_multimodal", slowly), patch.object(FakeVision, "preprocess", counted):
        call(engine, *[image(n) for n in range(20)])
    assert len(ahead) == 20
    assert max(ahead) <= AHEAD


def test_what_goes_wrong(engine: Engine) -> None:
    with pytest.raises(ImageError, match=r"images\[1\].*cannot take this image"):
        call(engine, CAT, REFUSED, DOG)
    with pytest.raises(ImageError, match="the image is broken"):
        call(engine, CAT, BROKEN, *[image(n) for n in range(10)])
    with patch.object(FakeVision, "encode_multimodal", slowly), pytest.raises(DeadlineError):
        call(engine, *[image(n) for n in range(50)], timeout=1e-6)
    assert len(call(engine, CAT)) == 1
    assert engine.metrics.running == engine.metrics.queued == 0


def test_closed_meanwhile(path: str) -> None:
    with ExitStack() as stack:
        engine = open_engine(stack, path, "flash")
        errors: list[BaseException] = []

        def work() -> None:
            try:
                call(engine, *[image(n) for n in range(30)])
            except ClosedError as error:
                errors.append(error)

        encoding, go_on = stack.enter_context(held_encoding(PATIENCE))
        thread = threading.Thread(target=work)
        thread.start()
        assert encoding.wait(PATIENCE)
        closing = threading.Thread(target=engine.close)
        closing.start()
        go_on.set()
        for each in (thread, closing):
            each.join(PATIENCE)
        assert len(errors) == 1
