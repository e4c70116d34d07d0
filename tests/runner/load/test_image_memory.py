"""What images take is planned from a file's header, by building the towers' graphs: to the byte, for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import Engine
from ollama_engine.config import EngineConfig
from ollama_engine.ml.device.placement_plan import PlacementOptions, PlacementPlan, Room
from ollama_engine.ml.device.placement_planner import plan_placement
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.runner.load.sizes import declared, model_sizes, tower_memory
from ollama_engine.runner.media.encoder import ImageMemory, measure_images, prepared_bytes
from tests.models.vision import harness
from tests.models.vision.harness import Case
from tests.models.vision.pictures import Picture
from tests.support.suite import slow_except
from tests.support.workers import running_worker

pytest.importorskip("PIL", reason="Pillow is not installed")

CASES = {case.name: case for case in harness.cases()}
QUICK = ("gemma3", "mllama", "qwen25vl")
OPTIONS: dict[str, Any] = {"num_ctx": 64, "parallel": 2, "batch_size": 64}
"""A context that is shorter than the largest pictures of Qwen, which have to shrink."""
SIZES = ((31, 97), (97, 31), (64, 64), (5, 3), (300, 200), (500, 40))


@pytest.fixture(params=slow_except(CASES, *QUICK))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def path(case: Case, tmp_path: Path) -> Path:
    return harness.converted(case, tmp_path)


def planned(path: Path) -> ImageMemory:
    """From the header alone."""
    with GGUFFile(path) as gguf, declared(gguf) as (model, backend):
        found = tower_memory(model, backend, EngineConfig(**OPTIONS))
    assert found is not None
    return found


def nothing(ctx: Context, out: Tensor) -> None:
    """For `measure_images`."""


def test_the_largest_image_is_planned_to_the_byte(path: Path) -> None:
    """As it is once the model is loaded; pictures of other sides take no more."""
    plan = planned(path)
    with harness.engine(path, **OPTIONS) as engine:
        images, backend = engine._loaded.images, engine._loaded.backend
        assert images is not None
        assert images.memory == plan
        before = backend.graph_bytes()
        assert sum(before.values()) >= plan.graph
        for seed, sides in enumerate(SIZES):
            image = images.multimodal.preprocess(Picture(*sides, seed).draw())
            with Context(backend) as ctx:
                out = images.multimodal.encode_multimodal(ctx, image)
                ctx.forward(out)
                assert sum(ctx.measure().values()) <= plan.graph
                assert ctx.constant_bytes <= plan.constants
                assert 4 * out.dim(0) * out.dim(1) <= plan.embeddings
            assert prepared_bytes(image) <= plan.prepared
            images._encoder.encode(image)
        assert backend.graph_bytes() == before


@pytest.mark.parametrize("name", QUICK)
def test_a_device_with_one_byte_less_than_planned_is_too_small(name: str, tmp_path: Path) -> None:
    path = harness.converted(CASES[name], tmp_path)
    config = EngineConfig(**OPTIONS)
    with GGUFFile(path) as gguf, declared(gguf) as (model, backend):
        image = tower_memory(model, backend, config)
        assert image is not None
        sizes = model_sizes(gguf, model, config, image, flash_attention=True)
    assert sizes.vision_graph == image.graph + image.constants

    def on_gpu(free: int) -> PlacementPlan:
        return plan_placement(sizes, [Room("GPU", free)], PlacementOptions())

    whole = on_gpu(1 << 50)
    assert whole.vision == 0
    enough = whole.devices[0].taken
    assert on_gpu(enough).devices[0].taken == enough
    assert on_gpu(enough - 1).devices[0].taken < enough - sizes.vision_graph // 2


def test_what_a_device_takes_is_what_was_planned_for_it(tmp_path: Path) -> None:
    """The tower of Gemma 3 lies on a worker: its graph there takes no more, and not much less."""
    path = harness.converted(CASES["gemma3"], tmp_path)
    plan = planned(path)
    with running_worker(tmp_path) as worker, Engine(path, devices=[worker.address], threads=1, **OPTIONS) as engine:
        placement = engine.memory.placement
        assert placement is not None
        assert placement.vision == 0
        images = engine._loaded.images
        assert images is not None
        there = measure_images(engine._loaded.backend, images.multimodal, nothing).graph
        assert there <= plan.graph + plan.constants <= there + plan.constants + plan.graph // 4


def test_one_byte_more_than_planned_shows(tmp_path: Path) -> None:
    """The fault that these tests are for: a loaded tower that takes more constants than its header told."""
    path = harness.converted(CASES["gemma3"], tmp_path)
    plan = planned(path)
    with harness.engine(path, **OPTIONS) as engine:
        tower = engine._loaded.images.multimodal  # type: ignore[union-attr]
        encode = tower.encode_multimodal

        def wasteful(ctx: Context, image: Any) -> Tensor:
            ctx.from_ints([1] * (ctx.constant_bytes // 4 + plan.constants // 4 + 1))
            return encode(ctx, image)

        with patch.object(tower, "encode_multimodal", wasteful):
            found = measure_images(engine._loaded.backend, tower, nothing)
        assert found.constants > plan.constants
        assert found._replace(constants=plan.constants) == plan
