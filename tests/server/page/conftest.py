"""A server whose model guesses tokens, for tests of what the page shows of that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest

from ollama_engine import Engine
from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.server.running import engine_of, running
from tests.support import drafted_answers
from tests.support.engine_thread import idle

GREEDY = {"temperature": 0, "num_predict": 60}


class Drafting(NamedTuple):
    """The server's address, and the engine of its model."""

    address: str
    engine: Engine


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafting]:
    """Its model has verified guesses, of which some were right and some wrong."""
    store = tmp_path_factory.mktemp("store")
    app = create_app(
        ServerSettings(draft="lookup", context_length=256, num_parallel=1, shutdown_timeout=5, models=store)
    )
    with running(app) as address:
        with drafted_answers.eager():
            for prompt in ("One day, a cat", "One day, a cat", "A cat and a dog"):  # the first answer comes again
                body = {"model": "demo", "prompt": prompt, "stream": False, "options": GREEDY}
                assert httpx.post(f"{address}/api/generate", json=body, timeout=60).status_code == 200
        engine = engine_of(app)
        idle(engine)
        assert 0 < engine.metrics.accepted_tokens < engine.metrics.drafted_tokens
        yield Drafting(address, engine)
