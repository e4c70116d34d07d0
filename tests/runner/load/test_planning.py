"""What a model will take is known before it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Engine, demo
from ollama_engine.errors import ConfigError, ModelFormatError


@pytest.mark.parametrize("path", [demo.path(), demo.vision_path()], ids=["text", "vision"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_ctx": 256, "parallel": 1}, {"num_ctx": 512, "parallel": 3, "kv_cache_type": "q8_0"}, {"mmap": False}],
    ids=["default", "small", "quantized cache", "copied"],
)
def test_the_plan_is_what_loading_takes(path: Path, options: dict[str, Any]) -> None:
    plan = Engine.plan_memory(path, **options)
    with Engine(path, **options) as engine:
        taken = engine.memory
    for planned, found in zip(plan.devices, taken.devices, strict=True):
        assert (planned.device, planned.weights, planned.mapped) == (found.device, found.weights, found.mapped)
        assert planned.cache == found.cache
    assert plan.layers == taken.layers
    # Graphs are estimates and masks a bound: not much below what is taken, and not many times as much.
    assert 0.8 * taken.total < plan.total < 3 * taken.total


def test_a_context_too_large_for_any_machine_is_planned_and_not_taken() -> None:
    plan = Engine.plan_memory(demo.path(), num_ctx=1 << 24, parallel=1024)
    assert plan.devices[-1].cache > 1 << 44


def test_it_raises_what_loading_raises(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(demo.path().read_bytes()[:-1000])
    with pytest.raises(ModelFormatError, match=r"damaged\.gguf"):
        Engine.plan_memory(damaged)
    with pytest.raises(FileNotFoundError):
        Engine.plan_memory(tmp_path / "none.gguf")
    with pytest.raises(ConfigError, match="num_ctx"):
        Engine.plan_memory(demo.path(), num_ctx=0)
    with pytest.raises(TypeError, match="num_ctxs"):
        Engine.plan_memory(demo.path(), num_ctxs=5)
