"""/api/embed, /api/embeddings, /api/ps and /api/version."""

from __future__ import annotations

import math
from datetime import datetime

import httpx
import numpy as np

from ollama_engine import Engine, demo
from tests.server.ollama.asking import ask, error_of, post

TEXTS = ["One day, a fox.", "A cat sat.", "x"]


def test_embeddings_are_those_of_the_engine(demo_server: str) -> None:
    found = ask(demo_server, "embed", input=TEXTS)
    assert list(found) == ["model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"]
    with Engine(demo.path(), threads=1) as engine:
        expected, plain = engine.embed(TEXTS), engine.embed(TEXTS[0], normalize=False)
    np.testing.assert_allclose(found["embeddings"], expected, atol=2e-3)
    alone = ask(demo_server, "embed", input=TEXTS[0])
    np.testing.assert_allclose(alone["embeddings"], [found["embeddings"][0]], atol=2e-3)
    old = ask(demo_server, "embeddings", prompt=TEXTS[0])
    np.testing.assert_allclose(old["embedding"], plain, rtol=1e-2, atol=2e-3 * float(np.abs(plain).max()))


def test_shortened_vectors_have_length_one(demo_server: str) -> None:
    (vector,) = ask(demo_server, "embed", input="x", dimensions=4)["embeddings"]
    assert len(vector) == 4
    assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-5)


def test_nothing_to_embed_loads(demo_server: str) -> None:
    for body in ({}, {"input": ""}, {"input": []}):
        assert ask(demo_server, "embed", **body)["embeddings"] == []
    assert ask(demo_server, "embeddings") == {"embedding": []}


def test_long_texts_are_cut_or_refused(demo_server: str) -> None:
    long = "One day a fox ran. " * 400
    assert ask(demo_server, "embed", input=long)["prompt_eval_count"] == 1024
    refused = post(demo_server, "embed", {"model": "demo", "input": long, "truncate": False})
    status, told = error_of(refused)
    assert status == 400
    assert told.startswith("the input length exceeds the context length")


def test_what_is_loaded(demo_server: str) -> None:
    ask(demo_server, "embed")
    (row,) = [model for model in httpx.get(f"{demo_server}/api/ps").json()["models"] if model["name"] == "demo:latest"]
    ollamas = ["name", "model", "size", "digest", "details", "expires_at", "size_vram", "context_length"]
    assert list(row) == [*ollamas, "devices"]
    assert row["details"]["family"] == "llama"
    assert row["context_length"] == 1024
    assert datetime.fromisoformat(row["expires_at"].partition(".")[0]).year >= 2026


def test_versions(demo_server: str) -> None:
    for method in ("GET", "HEAD"):
        for path in ("/", "/api/version", "/api/status"):
            assert httpx.request(method, demo_server + path).status_code == 200
    assert [int(part) for part in httpx.get(f"{demo_server}/api/version").json()["version"].split(".")] >= [0, 6, 4]
