"""Servers that the tests of all APIs share: starting them, and loading their models, is done once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("uvicorn", reason="the extra `server` is not installed")
pytest.importorskip("httpx", reason="the extra `server` is not installed")

from fastapi import FastAPI

from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.server.running import running


@pytest.fixture(scope="session")
def demo_app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """The app of `demo_server`: the packaged models, an empty store, four requests side by side."""
    store = tmp_path_factory.mktemp("store")
    return create_app(ServerSettings(num_parallel=4, context_length=1024, shutdown_timeout=5, models=store))


@pytest.fixture(scope="session")
def demo_server(demo_app: FastAPI) -> Iterator[str]:
    """The address of a server of the packaged models."""
    with running(demo_app) as address:
        yield address


@pytest.fixture(scope="session")
def chat_server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of SmolLM2, a model that was taught to chat: "smollm2"."""
    settings = ServerSettings(
        num_parallel=4, context_length=2048, shutdown_timeout=5, files=(("smollm2", smollm2_path),),
        models=tmp_path_factory.mktemp("store"),
    )  # fmt: skip
    with running(create_app(settings)) as address:
        yield address
