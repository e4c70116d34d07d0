"""Servers that tests share: starting one, and loading its models, is done once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("uvicorn", reason="the extra `server` is not installed")

from ollama_engine.server.settings import ServerSettings
from tests.server.running import RunningServer, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the packaged models, an empty store, and four requests side by side."""
    settings = ServerSettings(
        port=0, models=tmp_path_factory.mktemp("store"), num_parallel=4, max_queue=64, shutdown_timeout=5
    )
    with running_server(settings) as started:
        yield started


@pytest.fixture(scope="session")
def chat_server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with SmolLM2 under the name `smollm2`: a model that chats."""
    settings = ServerSettings(
        port=0, models=tmp_path_factory.mktemp("store"), num_parallel=2, context_length=1024, shutdown_timeout=5,
        files=(("smollm2", smollm2_path),),
    )  # fmt: skip
    with running_server(settings) as started:
        yield started
