from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from ollama_engine.cli.models import rm
from ollama_engine.server import ServerSettings, create_app
from ollama_engine.server.model_manager import manager
from ollama_engine.store.modelfile import parse_modelfile
from tests.store.layout import put_model
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import eventually

LIBRARY = "registry.ollama.ai/library"
PACKAGED_NAMES = ["demo:latest", "demo-vision:latest"]
JINJA = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_llama(path, metadata={"tokenizer.chat_template": JINJA, "general.file_type": 0})
    return path.read_bytes()


@pytest.fixture
def root(tmp_path: Path, gguf: bytes) -> Path:
    put_model(
        tmp_path, f"{LIBRARY}/tiny/latest",
        [("model", gguf), ("template", b"{{ .System }} {{ .Prompt }} {{ .Suffix }}"), ("system", b'Be\n"brief".'),
         ("params", b'{"stop": ["a", "b c"], "num_ctx": 64}'), ("license", b"Do what you want."),
         ("messages", b'[{"role": "user", "content": "hi"}]')],
        modified=1_700_000_000.25,
    )  # fmt: skip
    put_model(tmp_path, f"{LIBRARY}/plain/latest", [("model", gguf)], {}, modified=1_600_000_000)
    return tmp_path


@pytest.fixture
def client(root: Path) -> Iterator[TestClient]:
    app = create_app(ServerSettings(models=root))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


def test_any_text_can_be_shown(client: TestClient) -> None:
    """UTF-8 has no half of a surrogate pair; JSON has."""
    body = b'{"model": "tiny", "system": "\\ud800", "template": "\\udfff", "options": {"stop": ["\\ud800"]}}'
    shown = client.post("/api/show", content=body)
    assert shown.status_code == 200
    assert (shown.json()["system"], shown.json()["template"]) == ("\ud800", "\udfff")


def test_tags(client: TestClient) -> None:
    tiny, plain, *packaged = client.get("/api/tags").json()["models"]
    assert [model["name"] for model in packaged] == PACKAGED_NAMES, "what can be loaded, whatever its age"
    assert (tiny["name"], tiny["model"], tiny["modified_at"]) == (
        "tiny:latest",
        "tiny:latest",
        "2023-11-14T22:13:20.250000Z",
    )
    assert tiny["details"] == {
        "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"], "parameter_size": "1.2B",
        "quantization_level": "Q8_0", "context_length": 512, "embedding_length": 64,
    }  # fmt: skip
    assert tiny["capabilities"] == ["completion", "insert"]
    assert plain["capabilities"] == ["completion", "tools"]
    assert plain["details"]["parameter_size"].endswith("K")
    assert plain["details"]["quantization_level"] == "F32"
    assert len(tiny["digest"]) == 64
    assert client.head("/api/tags").status_code == 200


def test_show(client: TestClient) -> None:
    shown = client.post("/api/show", json={"model": "tiny"}).json()
    assert shown["license"] == "Do what you want."
    assert shown["template"] == "{{ .System }} {{ .Prompt }} {{ .Suffix }}"
    assert shown["system"] == 'Be\n"brief".'
    assert shown["parameters"].splitlines() == [
        'stop                           "a"',
        'stop                           "b c"',
        "num_ctx                        64",
    ]  # fmt: skip
    assert shown["messages"] == [{"role": "user", "content": "hi"}]
    info = shown["model_info"]
    assert (info["general.architecture"], info["llama.context_length"]) == ("llama", 512)
    assert info["general.parameter_count"] > 0
    assert info["tokenizer.ggml.tokens"] is None
    assert "tokenizer.chat_template" not in info
    assert "tensors" not in shown
    kinds = [command.kind for command in parse_modelfile(shown["modelfile"]).commands]
    assert kinds == ["FROM", "TEMPLATE", "SYSTEM", "PARAMETER", "PARAMETER", "PARAMETER", "MESSAGE", "LICENSE"]


def test_show_all(client: TestClient) -> None:
    shown = client.post(
        "/api/show", json={"name": "plain", "verbose": True, "system": "S", "options": {"seed": 1}}
    ).json()
    assert shown["template"] == JINJA
    assert shown["system"] == "S"
    assert "seed" in shown["parameters"]
    assert len(shown["model_info"]["tokenizer.ggml.tokens"]) == 320
    assert {"name": "token_embd.weight", "type": "f32", "shape": [64, 320]} in shown["tensors"]


def test_packaged_models_are_shown(client: TestClient) -> None:
    assert client.post("/api/show", json={"model": "demo-vision"}).json()["capabilities"] == ["completion", "vision"]


def test_packaged_models_cannot_be_copied_but_made_from(client: TestClient) -> None:
    answer = client.post("/api/copy", json={"source": "demo", "destination": "mine"})
    assert (answer.status_code, answer.json()["error"]) == (
        400, "model 'demo:latest' is not in the store, and cannot be copied; create 'mine:latest' from 'demo'"
    )  # fmt: skip
    assert client.post("/api/copy", json={"source": "nobody", "destination": "mine"}).status_code == 404
    assert client.post("/api/create", json={"model": "mine", "from": "demo", "stream": False}).status_code == 200


def test_packaged_models_cannot_be_deleted(client: TestClient) -> None:
    answer = client.request("DELETE", "/api/delete", json={"model": "demo"})
    assert (answer.status_code, answer.json()) == (
        400, {"error": "model 'demo:latest' is not in the store, and cannot be removed"}
    )  # fmt: skip
    assert client.request("DELETE", "/api/delete", json={"model": "nosuch"}).status_code == 404


def test_copy_and_delete(client: TestClient, root: Path) -> None:
    assert client.post("/api/copy", json={"source": "tiny", "destination": "me/other:v1"}).status_code == 200
    assert client.request("DELETE", "/api/delete", json={"model": "tiny"}).status_code == 200
    names = [model["name"] for model in client.get("/api/tags").json()["models"]]
    assert names == ["me/other:v1", "plain:latest", *PACKAGED_NAMES]
    assert client.post("/api/show", json={"model": "me/other:v1"}).status_code == 200


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pages are given back on Linux only")
@pytest.mark.parametrize("by", ["rm", "another of its name"])
def test_a_sleeping_model_ends_when_another_program_removes_it(
    root: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(manager, "LOOK_SECONDS", 0.01)
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    question = {"model": "tiny", "prompt": "a", "raw": True, "keep_alive": "10ms", "options": {"num_predict": 1}}
    with TestClient(create_app(ServerSettings(models=root, sleep=1e4)), base_url="http://localhost") as client:

        def sleeps() -> bool:
            return 'ollama_engine_sleeping{model="tiny:latest"} 1' in client.get("/metrics").text

        assert client.post("/api/generate", json=question).status_code == 200
        eventually(sleeps)
        if by == "rm":
            rm.main(Namespace(names=["tiny"], unused=False))
        else:
            put_model(root, f"{LIBRARY}/tiny/latest", [("model", gguf)], {})
        eventually(lambda: not sleeps())


@pytest.mark.parametrize(("method", "route", "body"), [
    ("POST", "show", {"model": "nothing"}), ("POST", "copy", {"source": "nothing", "destination": "x"}),
    ("DELETE", "delete", {"model": "nothing"}),
])  # fmt: skip
def test_models_that_are_not_there(client: TestClient, method: str, route: str, body: dict[str, str]) -> None:
    answer = client.request(method, f"/api/{route}", json=body)
    assert answer.status_code == 404
    assert "not found" in answer.json()["error"]


@pytest.mark.parametrize(
    "name", ["", "../../etc/passwd", "a/../b", "a/b/c/d", "x:y:z", "http://a/b/c/../d", "a\0b", "é"]
)
@pytest.mark.parametrize(("method", "route"), [("POST", "show"), ("DELETE", "delete")])
def test_what_is_no_name(client: TestClient, method: str, route: str, name: str) -> None:
    answer = client.request(method, f"/api/{route}", json={"model": name})
    assert answer.status_code == 400
    assert json.dumps(answer.json()["error"])


def test_a_damaged_model_is_reported_and_can_be_deleted(client: TestClient, root: Path) -> None:
    blob = max((root / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:100])
    answer = client.post("/api/show", json={"model": "tiny"})
    assert answer.status_code == 500
    assert blob.name.replace("sha256-", "sha256:") in answer.json()["error"]
    assert client.request("DELETE", "/api/delete", json={"model": "tiny"}).status_code == 200


@pytest.mark.parametrize("noprune", [False, True])
def test_a_server_that_starts_removes_what_is_left_over(root: Path, noprune: bool) -> None:
    blobs = root / "blobs"
    old, young = blobs / ("sha256-" + "0" * 64), blobs / ("sha256-" + "1" * 64)
    for path in (old, young):
        path.write_bytes(b"nobody's")
    os.utime(old, (1000, 1000))
    app = create_app(ServerSettings(models=root, noprune=noprune))
    with TestClient(app, base_url="http://localhost") as client:
        assert (old.exists(), young.exists()) == (noprune, True)
        assert len(client.get("/api/tags").json()["models"]) == 2 + len(PACKAGED_NAMES)


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    app = create_app(ServerSettings(models=tmp_path / "none"))
    with TestClient(app, base_url="http://localhost") as client:
        assert [model["name"] for model in client.get("/api/tags").json()["models"]] == PACKAGED_NAMES
    assert not (tmp_path / "none").exists()
