"""Servers that the tests of all APIs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.server.running import running


@pytest.fixture(scope="session")
def demo_server() -> Iterator[str]:
    """The address of a server of the packaged models, four requests side by side."""
    with running(create_app(ServerSettings(num_parallel=4, context_length=1024))) as address:
        yield address


@pytest.fixture(scope="session")
def chat_server(smollm2_path: Path) -> Iterator[str]:
    """The address of a server of SmolLM2, a model that was taught to chat: "smollm2"."""
    settings = ServerSettings(num_parallel=4, context_length=2048, files=(("smollm2", smollm2_path),))
    with running(create_app(settings)) as address:
        yield address
