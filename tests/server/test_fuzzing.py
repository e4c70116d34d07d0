"""Requests made from the OpenAPI page, valid and not: none is a fault of the server, hangs, or stays behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.server.running import running

schemathesis = pytest.importorskip("schemathesis", reason="extra: clients")

EXAMPLES = 10
"""Of each route."""
ELSEWHERE = ("/api/pull", "/api/push")
"""Routes that call registries."""
MESSAGES = [{"role": "user", "content": "Hello"}]
VALID = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 3, "max_completion_tokens": 3},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 3},
    "/v1/embeddings": {"input": "Hello"},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 3},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/api/generate": {"prompt": "Hello", "options": {"num_predict": 3}},
    "/api/chat": {"messages": MESSAGES, "options": {"num_predict": 3}},
    "/apply-template": {"messages": MESSAGES},
}
"""Fields with which requests come far, and answers are short."""


def app(store: Path) -> FastAPI:
    return create_app(ServerSettings(num_parallel=2, context_length=256, models=store))


def operations(address: str = "http://127.0.0.1:1") -> list[tuple[str, str]]:
    """Methods and paths of the page."""
    page = app(Path("/nowhere")).openapi()
    return [
        (method, path) for path, methods in page["paths"].items() if path not in ELSEWHERE for method in sorted(methods)
    ]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running(app(tmp_path_factory.mktemp("store"))) as found:
        yield found


@pytest.fixture(scope="module")
def schema(address: str) -> Any:
    return schemathesis.openapi.from_url(address + "/openapi.json")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), operations())
def test_no_request_is_a_fault_of_the_server(address: str, schema: Any, method: str, path: str) -> None:
    operation, modes = schema[path][method.upper()], schemathesis.GenerationMode
    cases = [operation.as_strategy(generation_mode=mode) for mode in (modes.POSITIVE, modes.NEGATIVE)]

    @given(case=st.one_of(cases), rest=st.none() | st.integers(0, 3))
    @settings(
        max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )  # fmt: skip
    def check(case: Any, rest: int | None) -> None:
        if isinstance(case.body, dict) and rest is not None:  # a valid request, but for some fields
            some = dict(sorted(case.body.items(), key=lambda item: crc32(str(item).encode("utf-8", "replace")))[:rest])
            case.body = {**some, **VALID.get(path, {}), **({"model": "demo"} if "model" in case.body else {})}
        response = case.call(base_url=address, timeout=60)
        assert response.status_code < 500, (case.body, response.content[:500])

    check()
    assert idle(address)


def idle(address: str) -> bool:
    """Whether the engine is without requests, soon."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if not httpx.get(address + "/slots").json():
            return True
    return False
