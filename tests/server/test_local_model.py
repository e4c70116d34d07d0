"""Models in the server's process: what takes long leaves the event loop to others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ollama_engine import demo
from ollama_engine.server.library import of_file
from ollama_engine.server.local_model import FEW, LocalModel


class NotingEngine:
    """Notes the threads in which tokens are looked up."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def token_bytes(self, token: int) -> bytes:
        self.threads.add(threading.get_ident())
        return bytes([token])


@pytest.mark.parametrize(("n_tokens", "beside"), [(1, False), (FEW + 1, True)], ids=["one", "many"])
def test_many_tokens_are_looked_up_beside_the_event_loop(n_tokens: int, beside: bool) -> None:
    engine: Any = NotingEngine()
    facts: Any = None
    model = LocalModel(engine, of_file("demo", demo.path()), facts)
    assert asyncio.run(model.token_bytes([7] * n_tokens)) == [b"\7"] * n_tokens
    assert (threading.get_ident() not in engine.threads) is beside
