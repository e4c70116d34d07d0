"""Every family that reads images, in the runner: small budgets, shifts, sessions, memory taken at start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine.multimodal.image import read_image
from ollama_engine.runner.core.input_processor import prompt_inputs
from ollama_engine.runner.execute.executor import Executor
from tests.models.vision import harness
from tests.models.vision.harness import Case, cases, greedy
from tests.models.vision.pictures import Picture
from tests.support.suite import slow_except

pytest.importorskip("PIL", reason="Pillow is not installed")

each_case = pytest.mark.parametrize("case", slow_except(cases(), "gemma3", "mllama"), ids=str)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("vision"))


@each_case
def test_many_requests_with_a_small_budget(case: Case, folder: Path) -> None:
    """Embeddings are dropped and computed again, and every answer is what transformers gives."""
    golden, path = harness.load(case), harness.converted(case, folder)
    names = [*case.prompts, *case.prompts]
    for budget in (0, 1 << 30):
        with harness.engine(path, parallel=3, num_ctx=256, batch_size=16, image_cache_bytes=budget) as engine:
            requests = [engine.submit(case.segments(case.prompts[name]), greedy(case), cache=False) for name in names]
            found = [list(request.result().tokens) for request in requests]
            n_images = len({part for prompt in case.prompts.values() for part in prompt if isinstance(part, Picture)})
            assert (engine.metrics.encoded_images == n_images) == (budget > 0)
        assert found == [golden.answers[name].tokens for name in names]


@each_case
def test_the_worst_case_is_taken_at_start(case: Case, folder: Path) -> None:
    with harness.engine(harness.converted(case, folder), parallel=3, num_ctx=256, batch_size=64) as engine:
        backend = engine._loaded.backend
        before = backend.graph_bytes(), backend.work_bytes()
        engine.generate([case.segments(prompt) for prompt in case.prompts.values()], greedy(case))
        reader = engine._loaded.images
        assert reader is not None
        reader._encoder.encode(reader.multimodal.largest_image())
        engine.generate("text", greedy(case))
        assert (backend.graph_bytes(), backend.work_bytes()) == before


@each_case
def test_the_largest_image_is_taken_at_start(case: Case, folder: Path) -> None:
    """Without the graphs of texts, which take more in these models, and would hide the tower's."""
    with (
        patch.object(Executor, "reserve_batch"),
        harness.engine(harness.converted(case, folder), parallel=3, num_ctx=256, batch_size=64) as engine,
    ):
        backend, reader = engine._loaded.backend, engine._loaded.images
        before = backend.graph_bytes(), backend.work_bytes()
        assert sum(before[0].values()) > 0
        assert reader is not None
        prepared = [reader.multimodal.preprocess(read_image(picture.file)) for picture in case.pictures]
        for image in (*prepared, reader.multimodal.largest_image()):
            reader._encoder.encode(image)
            assert (backend.graph_bytes(), backend.work_bytes()) == before


@each_case
def test_a_shift_that_removes_an_image(case: Case, folder: Path) -> None:
    """The answer goes on behind it, and a later request of the same prompt has the same answer."""
    with harness.engine(harness.converted(case, folder), parallel=2, num_ctx=160, verify=True) as engine:
        prompt = case.segments(("a", Picture(40, 30, 7), "and what else?"))
        n = len(engine.submit(prompt, greedy(case)).prompt)
        params = replace(greedy(case), max_tokens=2 * 160 - n)
        expected = engine.generate(prompt, params, on_overflow="shift", num_keep=1, cache=False)
        assert expected.usage.shifted_tokens > 0
        both = [engine.submit(prompt, params, on_overflow="shift", num_keep=1) for _ in range(2)]
        for request in both:
            assert request.result().tokens == expected.tokens
        again = engine.generate(prompt, greedy(case))
        assert again.tokens == expected.tokens[: len(again.tokens)]


@each_case
def test_a_session_and_its_file(case: Case, folder: Path, tmp_path: Path) -> None:
    golden, path, name = harness.load(case), harness.converted(case, folder), next(iter(case.prompts))
    file = tmp_path / "session"
    with harness.engine(path, parallel=2) as engine, engine.session() as session:
        session.append(case.segments(case.prompts[name]))
        session.save(file)
        assert list(session.generate(greedy(case)).tokens) == golden.answers[name].tokens
    for kind in ("f32", "f16"):  # as it was stored, and computed again from the embeddings in the file
        with harness.engine(path, parallel=2, kv_cache_type=kind) as engine, engine.load_session(file) as session:
            found = session.generate(greedy(case))
            assert engine.metrics.encoded_images == 0
            if kind == "f32":
                assert list(found.tokens) == golden.answers[name].tokens


@each_case
def test_images_are_independent_of_each_others_order(case: Case, folder: Path) -> None:
    """Trap: state of the graph before, left in memory that the next image's graph reuses."""
    pictures = [Picture(40, 30, 1), Picture(130, 20, 2), Picture(3, 50, 3)]
    with harness.engine(harness.converted(case, folder)) as engine:
        reader = engine._loaded.images
        assert reader is not None
        prepared = [reader.multimodal.preprocess(picture.draw()) for picture in pictures]
        once = [reader._encoder.encode(image) for image in prepared]
        for number in (2, 0, 1, 1, 0, 2):
            np.testing.assert_array_equal(reader._encoder.encode(prepared[number]), once[number])


@each_case
def test_same_batch_is_not_on_a_shared_start_token(case: Case, folder: Path) -> None:
    """Trap: the token that begins an image may be cached with another image behind it, and its group with it.

    So a group begins with the image's own first input, and all before that is used again, and nothing of the image.
    """
    with harness.engine(harness.converted(case, folder)) as engine:
        traits = engine._loaded.executor.traits
        for prompt in case.prompts.values():
            inputs = prompt_inputs(engine._loaded, case.segments(prompt))
            spans = [(span.begin, span.end) for span in inputs.media]
            assert spans
            assert list(inputs.groups) == (spans if traits.bidirectional or traits.groups_per_batch else [])
        first, second = (case.segments(("same", Picture(30, 30, seed), "?")) for seed in (1, 2))
        alone = engine.generate(second, greedy(case), cache=False)
        engine.generate(first, greedy(case))
        after = engine.generate(second, greedy(case))
        begin = prompt_inputs(engine._loaded, second).media[0].begin
        # Recurrent layers go on at checkpoints only, and there is none in so short a text.
        assert after.usage.cached_tokens == (begin if engine._loaded.cache.recurrent is None else 0)
        assert after.tokens == alone.tokens != engine.generate(first, greedy(case)).tokens
