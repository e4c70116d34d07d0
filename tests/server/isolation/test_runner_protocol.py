"""`ollama-engine runner`: Ollama's protocol between a server and the process of a model."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from ollama_engine import Engine, demo
from ollama_engine.multimodal.source import image_bytes
from ollama_engine.sample import SamplingParams
from ollama_engine.server.isolation.hosted_model import HostedModel, engine_options
from ollama_engine.server.isolation.loader import load_request
from ollama_engine.server.isolation.model_server import without_sites
from ollama_engine.server.isolation.model_server_app import runner_app
from ollama_engine.server.model_manager.runner_options import RunnerOptions
from ollama_engine.server.settings import ServerSettings
from tests.cli.program import program

LOAD = {"Parallel": 2, "BatchSize": 64, "FlashAttention": -1, "KvSize": 256, "KvCacheType": "f16", "NumThreads": 1,
        "GPULayers": [], "MultiUserCache": False, "ProjectorPath": "", "MainGPU": 0, "UseMmap": True}  # fmt: skip


@contextmanager
def runner(path: str, token: str = "") -> Iterator[TestClient]:
    with TestClient(runner_app(HostedModel(path), token)) as client:
        yield client


@pytest.fixture(scope="module")
def loaded() -> Iterator[TestClient]:
    with runner(str(demo.path())) as client:
        assert client.post("/load", json={"Operation": 1, **LOAD}).status_code == 200
        yield client


def test_a_model_is_fitted_loaded_and_closed() -> None:
    with runner(str(demo.path())) as client:
        assert client.get("/health").json() == {"status": 2, "progress": 0.0}
        assert client.get("/info").json()[-1]["name"] == "CPU"
        refused = client.post("/completion", json={"Prompt": "x"})
        assert (refused.status_code, refused.json()["error"]) == (
            400, "no model is loaded yet; send /load with Operation 1 first")  # fmt: skip
        fit = client.post("/load", json={"Operation": 0, **LOAD}).json()
        assert client.get("/health").json()["status"] == 2, "fitting takes nothing"
        alloc = client.post("/load", json={"Operation": 1, **LOAD}).json()
        assert fit["Success"]
        assert alloc["Success"]
        assert fit["Memory"]["CPU"]["Weights"] == alloc["Memory"]["CPU"]["Weights"] > 1 << 20
        assert fit["Memory"]["CPU"]["Cache"] == alloc["Memory"]["CPU"]["Cache"] > 0
        assert client.post("/load", json={"Operation": 2}).json()["Memory"] == alloc["Memory"]
        assert client.get("/health").json() == {"status": 0, "progress": 1.0}
        again = client.post("/load", json={"Operation": 1, **LOAD})
        assert (again.status_code, again.json()["error"]) == (500, "model already loaded")
        assert client.post("/load", json={"Operation": 3}).json() == {"Success": True}
        assert client.get("/health").json()["status"] == 2
        assert client.post("/load", json={"Operation": 2}).status_code == 400
        loras = client.post("/load", json={"Operation": 1, **LOAD, "LoraPath": ["/x"]})
        assert (loras.status_code, loras.json()["error"]) == (500, "loras are not yet implemented")


def test_an_answer_comes_in_lines(loaded: TestClient) -> None:
    asked = {"Prompt": "Once upon a time", "Options": {"temperature": 0, "num_predict": 6, "seed": -1, "num_keep": -1},
             "Logprobs": True, "TopLogprobs": 2}  # fmt: skip
    response = loaded.post("/completion", json=asked)
    assert response.headers["content-type"] == "application/x-ndjson"
    *pieces, last = map(json.loads, response.text.splitlines())
    with Engine(demo.path(), num_ctx=128, threads=1) as engine:
        expected = engine.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=6)).text
    assert "".join(piece["content"] for piece in pieces) == expected
    assert len(pieces[0]["logprobs"][0]["top_logprobs"]) == 2
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, 1, 6)
    assert last["prompt_eval_count"] > 3
    assert last["eval_duration"] > 0


def test_grammars_formats_and_limits(loaded: TestClient) -> None:
    def text(**asked: Any) -> str:
        body = {"Prompt": "Is it? ", "Options": {"temperature": 0, "num_predict": 20}, **asked}
        return "".join(
            json.loads(line).get("content", "") for line in loaded.post("/completion", json=body).text.splitlines()
        )

    assert text(Grammar='root ::= "yes" | "no"') in ("yes", "no")
    assert json.loads(text(Format={"type": "boolean"})) in (True, False)
    too_long = loaded.post("/completion", json={"Prompt": "word " * 400, "Shift": False, "Truncate": False})
    assert too_long.status_code == 400
    assert "num_ctx" in too_long.json()["error"]
    assert loaded.post("/completion", content=b"[1]").status_code == 400
    assert loaded.post("/completion", json={"Prompt": 5}).status_code == 400
    assert loaded.post("/engine/call", json={"method": "_open", "args": [], "kwargs": {}}).status_code == 400


def test_embeddings(loaded: TestClient) -> None:
    found = loaded.post("/embedding", json={"content": "a text"}).json()
    assert np.linalg.norm(found["embedding"]) == pytest.approx(1, abs=1e-5)
    assert found["prompt_eval_count"] > 1
    assert loaded.post("/embedding", json={"content": "word " * 400}).status_code == 400


def test_images() -> None:
    picture = base64.b64encode(image_bytes(np.zeros((32, 32, 3), np.uint8))).decode()
    asked = {"Prompt": "[img-0] What is it?", "Images": [{"data": picture, "id": 0}], "Options": {"num_predict": 3}}
    with runner(str(demo.vision_path())) as client:
        client.post("/load", json={"Operation": 1, **LOAD})
        *_, last = map(json.loads, client.post("/completion", json=asked).text.splitlines())
        without = {**asked, "Images": []}
        *_, fewer = map(json.loads, client.post("/completion", json=without).text.splitlines())
        assert last["done"]
        assert last["prompt_eval_count"] > 0
        assert fewer["prompt_eval_count"] != last["prompt_eval_count"]


def test_a_token_keeps_others_out() -> None:
    with runner(str(demo.path()), token="secret") as client:
        for path in ("/health", "/info"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer secre"}).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200
        assert client.post("/load", json={"Operation": 1}).status_code == 401


def test_the_command_says_what_is_missing() -> None:
    for arguments, said in (
        (["--model", str(demo.path())], "give --port or --socket"),
        (["--model", "/no/such.gguf", "--port", "0"], "No such file"),
    ):
        result = program("runner", *arguments)
        assert result.code != 0
        assert said in result.err


@pytest.mark.parametrize("headers", [
    {"Host": "evil.example"}, {"Host": "127.0.0.1", "Origin": "https://evil.example"},
], ids=str)  # fmt: skip
def test_web_sites_are_kept_from_a_runner_at_a_port(headers: dict[str, str]) -> None:
    with TestClient(without_sites(runner_app(HostedModel(str(demo.path())))), base_url="http://127.0.0.1") as client:
        assert client.get("/health").status_code == 200
        refused = client.post("/load", json={"Operation": 3}, headers=headers)
        assert refused.status_code == 403
        assert list(refused.json()) == ["error"]


@pytest.mark.parametrize(("name", "values", "default"), [
    ("measure_kernels", (True, False), True), ("expert_cache_bytes", (1 << 40, 5), None),
])  # fmt: skip
def test_settings_reach_the_process(name: str, values: tuple[Any, Any], default: object) -> None:
    for value in values:
        settings = replace(ServerSettings(), **{name: value})
        options = RunnerOptions.of({}).engine_options(settings, has_gpu=False)
        body = load_request(SimpleNamespace(projector_path=None), options)  # type: ignore[arg-type]
        assert engine_options(body)[name] == value
    assert engine_options({})[name] == default
