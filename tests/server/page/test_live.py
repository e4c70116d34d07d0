"""What the live view shows while models come and go."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ollama_engine.errors import ClosedError, EngineError, ModelProcessError
from ollama_engine.server.page.routes import live


@pytest.mark.parametrize("error", [ClosedError("unloaded"), ModelProcessError("crashed")], ids=["unloaded", "crashed"])
def test_a_model_that_is_gone_is_left_out(error: EngineError) -> None:
    async def metrics() -> None:
        raise error

    gone = SimpleNamespace(model=SimpleNamespace(metrics=metrics))
    service: Any = SimpleNamespace(manager=SimpleNamespace(loaded=lambda: [gone, gone]))
    assert asyncio.run(live(service)) == {"models": []}
