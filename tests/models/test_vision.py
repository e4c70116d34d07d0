"""Models that read images: a published folder -> our converter -> our engine: what transformers computed.

Runs without torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.input import FloatArray
from ollama_engine.ml.graph.context import Context
from ollama_engine.models.base import Multimodal
from ollama_engine.multimodal.image import read_image
from ollama_engine.runner.core.input_processor import prompt_inputs
from tests.models.cases import difference
from tests.models.vision import harness
from tests.models.vision.harness import TOLERANCE, Case, Golden, cases, checksums, greedy
from tests.models.vision.pictures import Picture
from tests.support.suite import scaled, slow_except

pytest.importorskip("PIL", reason="Pillow is not installed")

each_case = pytest.mark.parametrize("case", cases(), ids=str)


def test_every_golden_has_its_case() -> None:
    assert {path.stem for path in harness.GOLDENS.iterdir()} == {case.name for case in cases()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("vision"))


def opened(case: Case, folder: Path, **options: Any) -> Engine:
    return harness.engine(harness.converted(case, folder), **options)


def multimodal(engine: Engine) -> Multimodal:
    model: Any = engine._loaded.model
    assert model.multimodal is not None, "the file has a part that reads images"
    found: Multimodal = model.multimodal
    return found


def encoded(engine: Engine, picture: Picture) -> FloatArray:
    """The embeddings of a picture, computed without the runner: float32 [rows, n_embd]."""
    reader = multimodal(engine)
    with Context(engine._loaded.backend) as ctx:
        out = reader.encode_multimodal(ctx, reader.preprocess(picture.draw()))
        ctx.forward(out)
        ctx.alloc()
        ctx.compute()
        return out.numpy().astype(np.float32).reshape(-1, out.dim(0))


@each_case
def test_embeddings_are_those_of_transformers(case: Case, folder: Path) -> None:
    golden = harness.load(case)
    with opened(case, folder) as engine:
        for name, prompt in case.prompts.items():
            pictures = [part for part in prompt if isinstance(part, Picture)]
            for picture, expected in zip(pictures, golden.answers[name].features, strict=True):
                found = case.encoded(multimodal(engine), encoded(engine, picture))
                assert found.shape == expected.shape
                assert difference(found, expected) <= TOLERANCE, f"{name}: {picture}"


@each_case
def test_pixels_are_those_of_transformers(case: Case, folder: Path) -> None:
    """Bit by bit, for pictures of odd sizes and modes that come as files."""
    golden = harness.load(case)
    with opened(case, folder) as engine:
        reader = multimodal(engine)
        for picture, expected in zip(case.pictures, golden.pixels, strict=True):
            found = checksums(reader.preprocess(read_image(picture.file)).arrays)
            assert {name: found[name] for name in expected} == expected, picture


@each_case
def test_a_prompt_has_the_tokens_that_transformers_gives_it(case: Case, folder: Path) -> None:
    golden = harness.load(case)
    with opened(case, folder) as engine:
        for name, prompt in case.prompts.items():
            inputs = prompt_inputs(engine._loaded, case.segments(prompt))
            assert case.ids(inputs) == golden.answers[name].ids.tolist(), name


@each_case
def test_logits_and_greedy_tokens(case: Case, folder: Path) -> None:
    golden = harness.load(case)
    with opened(case, folder) as engine:
        for name, prompt in case.prompts.items():
            check(case, golden, name, engine)
            rows = engine.logits(case.segments(prompt))[golden.answers[name].rows]
            assert difference(rows, golden.answers[name].logits) <= TOLERANCE, name


def check(case: Case, golden: Golden, name: str, engine: Engine, **options: Any) -> None:
    """Ask for the greedy answer to a prompt, and compare it with that of transformers."""
    answer = engine.generate(case.segments(case.prompts[name]), greedy(case), **options)
    assert list(answer.tokens) == golden.answers[name].tokens, f"{name}: {options}"


@each_case
@pytest.mark.parametrize("batch_size", slow_except([1, 2, 3, 5, 8, 16, 31, 64], 2, 16))
def test_a_prompt_may_be_cut_anywhere(case: Case, batch_size: int, folder: Path) -> None:
    """With batches smaller than an image, and chunks that begin and end before, in, and behind one."""
    golden = harness.load(case)
    with opened(case, folder, batch_size=batch_size) as engine:
        for name in case.prompts:
            check(case, golden, name, engine)


@each_case
def test_images_and_texts_are_batched_together(case: Case, folder: Path) -> None:
    """Each request has the answer that it has alone, though prompts with and without images share the steps."""
    golden, texts = harness.load(case), ["only text", "no picture here, but words", "x"]
    with opened(case, folder) as engine:
        alone = [list(engine.generate(text, greedy(case)).tokens) for text in texts]
    with opened(case, folder, parallel=6, num_ctx=256) as engine:
        prompts: list[Any] = []
        for number, prompt in enumerate(case.prompts.values()):
            prompts += [texts[number % len(texts)], case.segments(prompt)]
        requests = [engine.submit(prompt, greedy(case)) for prompt in prompts]
        answers = [list(request.result().tokens) for request in requests]
    assert answers[0::2] == [alone[number % len(texts)] for number in range(len(case.prompts))]
    assert answers[1::2] == [golden.answers[name].tokens for name in case.prompts]


@each_case
def test_answers_are_the_same_with_a_cached_prefix_and_without(case: Case, folder: Path) -> None:
    golden = harness.load(case)
    with opened(case, folder) as engine:
        for name, prompt in case.prompts.items():
            check(case, golden, name, engine)
            check(case, golden, name, engine)
            check(case, golden, name, engine, cache=False)
            # a prefix that ends before or behind an image, then the whole prompt
            for end in range(1, len(prompt), scaled(1, quick=2)):
                engine.generate(case.segments(prompt[:end]), SamplingParams(temperature=0, max_tokens=1))
                check(case, golden, name, engine)


@each_case
def test_an_image_in_another_place_is_another_prefix(case: Case, folder: Path) -> None:
    """Two images are exchanged: equal token ids, another answer than from the cache."""
    first, second = Picture(40, 30, 11), Picture(30, 40, 12)
    prompts = [case.segments((a, "and", b, "?")) for a, b in ((first, second), (second, first))]
    with opened(case, folder) as engine:
        alone = [list(engine.generate(prompt, greedy(case), cache=False).tokens) for prompt in prompts]
        assert alone[0] != alone[1], "the answers tell the order of the images"
        for _ in range(2):
            assert [list(engine.generate(prompt, greedy(case)).tokens) for prompt in prompts] == alone


@each_case
def test_parallel_requests_with_the_same_image(case: Case, folder: Path) -> None:
    golden, name = harness.load(case), next(iter(case.prompts))
    prompt = case.segments(case.prompts[name])
    with opened(case, folder, parallel=8, num_ctx=128) as engine:
        requests = [engine.submit(prompt, greedy(case), cache=i % 2 == 0) for i in range(8)]
        assert [list(request.result().tokens) for request in requests] == [golden.answers[name].tokens] * 8
