from __future__ import annotations

import errno
import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ollama_engine import demo
from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from ollama_engine.store import ModelStore
from ollama_engine.store.blobs import BlobWriter
from ollama_engine.store.transfers import TransferSettings
from tests.convert.folders import HfFolder
from tests.convert.test_joining import write_split_llama
from tests.server.running import running
from tests.store.fake_registry import FakeRegistry, serving
from tests.store.layout import files
from tests.support.tiny import TinyLlama, write_tiny_llama
from tests.support.waiting import eventually, join

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return Path(
        write_tiny_llama(tmp_path_factory.mktemp("gguf") / "t.gguf", metadata={"general.file_type": 0}).path
    ).read_bytes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def server(root: Path) -> Iterator[str]:
    with running(create_app(ServerSettings(models=root, shutdown_timeout=5))) as address:
        yield address


@pytest.fixture
def client(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def upload(client: httpx.Client, data: bytes) -> str:
    assert client.post(f"/api/blobs/{digest_of(data)}", content=data).status_code == 201
    return digest_of(data)


def told(answer: httpx.Response) -> Events:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def test_blobs(client: httpx.Client, root: Path) -> None:
    digest = digest_of(b"some data")
    assert client.head(f"/api/blobs/{digest}").status_code == 404
    assert client.post(f"/api/blobs/{digest}", content=b"some data").status_code == 201
    assert client.head(f"/api/blobs/{digest}").status_code == 200
    assert client.post(f"/api/blobs/{digest}", content=b"").status_code == 200
    assert (root / "blobs" / digest.replace(":", "-")).read_bytes() == b"some data"
    wrong = client.post(f"/api/blobs/{digest_of(b'other')}", content=b"some data!")
    assert (wrong.status_code, "digest mismatch" in wrong.json()["error"]) == (400, True)
    for bad in ("sha256:12", "md5:" + "0" * 64, "..%2f..%2fx", "sha256:" + "g" * 64):
        assert client.post(f"/api/blobs/{bad}", content=b"x").status_code in (400, 404)
        assert client.head(f"/api/blobs/{bad}").status_code in (400, 404)
    assert files(root) == {f"blobs/{digest.replace(':', '-')}"}


def test_who_leaves_during_an_upload_is_no_failure(
    server: str, client: httpx.Client, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = urlsplit(server)
    head = f"POST /api/blobs/{digest_of(b'x')} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nsome"
    with caplog.at_level("INFO", "ollama_engine"):
        with socket.create_connection((str(parts.hostname), parts.port or 80)) as leaving:
            leaving.sendall(head.encode())
            eventually(lambda: list(root.rglob("*.part")))
        eventually(lambda: "POST /api/blobs/" in caplog.text)
    assert not list(root.rglob("*.part"))
    assert " 499 " in caplog.text
    assert "Traceback" not in caplog.text


def test_an_upload_to_a_full_disk(client: httpx.Client, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BlobWriter, "write", full)
    answer = client.post(f"/api/blobs/{digest_of(b'x')}", content=b"x")
    assert (answer.status_code, answer.json()) == (507, {"error": "the store: No space left on device"})
    assert not list(root.rglob("*.part"))


def test_create_from_a_file(client: httpx.Client, root: Path, gguf: bytes) -> None:
    body = {
        "model": "mine", "files": {"model.gguf": upload(client, gguf)}, "template": "{{ .Prompt }}",
        "system": "Be brief.",
        "parameters": {"stop": "x", "num_ctx": 64.0, "temperature": 1}, "license": "L",
        "messages": [{"role": "user", "content": "hi"}], "requires": "0.1",
    }  # fmt: skip
    events = told(client.post("/api/create", json=body))
    assert [event["status"] for event in events] == [
        "gathering model components", f"using existing layer {digest_of(gguf)}", "writing manifest", "success",
    ]  # fmt: skip
    found = ModelStore(root).find("mine")
    assert found.model_path.read_bytes() == gguf
    assert found.parameters == {"stop": ["x"], "num_ctx": 64, "temperature": 1.0}
    assert (found.template, found.system, found.licenses) == ("{{ .Prompt }}", "Be brief.", ("L",))
    config = found.config
    assert (config["model_family"], config["file_type"], config["requires"]) == ("llama", "F32", "0.1")
    answer = client.post(
        "/api/generate", json={"model": "mine", "prompt": "a", "options": {"num_predict": 2}, "stream": False}
    )
    assert answer.status_code == 200

    derived = {"model": "other", "from": "MINE", "system": "New.", "parameters": {"seed": 3}, "license": ["L", "M"]}
    answer = client.post("/api/create", json={**derived, "stream": False})
    assert answer.json() == {"status": "success"}
    other = ModelStore(root).find("other")
    assert (other.system, other.template, other.licenses) == ("New.", "{{ .Prompt }}", ("L", "M"))
    assert other.parameters == {"stop": ["x"], "num_ctx": 64, "temperature": 1.0, "seed": 3}
    assert other.messages == found.messages
    assert other.model_path == found.model_path


def test_create_quantizes(client: httpx.Client, root: Path, gguf: bytes) -> None:
    files_ = {"model.gguf": upload(client, gguf)}
    events = told(client.post("/api/create", json={"model": "small", "files": files_, "quantize": "q8_0"}))
    (last,) = [event for event in events if event["status"] == "quantizing F32 model to Q8_0"][-1:]
    assert last["completed"] == last["total"]
    shown = client.post("/api/show", json={"model": "small"}).json()
    assert shown["details"]["quantization_level"] == "Q8_0"
    again = told(client.post("/api/create", json={"model": "s", "from": "small", "quantize": "q4_K_M"}))
    assert again[-1]["error"] == "quantization is only supported for F16, BF16 and F32 models, this one is Q8_0"
    assert (
        told(client.post("/api/create", json={"model": "s", "from": "small", "quantize": "q8_0"}))[-1]["status"]
        == "success"
    )


def test_create_converts(client: httpx.Client, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    HfFolder(TinyLlama()).write(folder)
    uploaded = {path.name: upload(client, path.read_bytes()) for path in folder.iterdir()}
    events = told(client.post("/api/create", json={"model": "converted", "files": uploaded}))
    assert "converting model" in [event["status"] for event in events]
    assert events[-1] == {"status": "success"}
    assert answered(client, "converted")["eval_count"] == 4


def answered(client: httpx.Client, model: str) -> dict[str, Any]:
    """A greedy answer of 4 tokens: drawn ones may be the one that ends it."""
    body = {"model": model, "prompt": "a", "raw": True, "options": {"num_predict": 4, "temperature": 0}}
    answer = client.post("/api/generate", json={**body, "stream": False})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_create_joins_parts(client: httpx.Client, root: Path, gguf: bytes, tmp_path: Path) -> None:
    uploaded = {path.name: upload(client, path.read_bytes()) for path in write_split_llama(tmp_path / "parts")}
    events = told(client.post("/api/create", json={"model": "joined", "files": uploaded}))
    assert "joining parts" in [event["status"] for event in events]
    assert ModelStore(root).find("joined").model_path.read_bytes() == gguf
    assert answered(client, "joined")["eval_count"] == 4
    uploaded.popitem()
    answer = told(client.post("/api/create", json={"model": "other", "files": uploaded}))
    assert "of these are missing" in answer[-1]["error"]


def test_create_from_a_packaged_model(client: httpx.Client, root: Path) -> None:
    assert told(client.post("/api/create", json={"model": "story", "from": "demo", "system": "S"}))[-1] == {
        "status": "success"
    }
    assert ModelStore(root).find("story").model_path.read_bytes() == demo.path().read_bytes()


@pytest.mark.parametrize(("body", "status", "said"), [
    ({"files": {"a.gguf": "sha256:" + "0" * 64}}, 400, "model is required"),
    ({"model": "x"}, 400, "neither 'from' or 'files'"),
    ({"model": "../x", "from": "demo"}, 400, "invalid model name"),
    ({"model": "x", "files": {"a.gguf": "sha256:1"}}, 400, "invalid digest"),
    ({"model": "x", "from": "demo", "parameters": {"num_ctx": "many"}}, 400, '"num_ctx" must be of type integer'),
    ({"model": "x", "from": "demo", "parameters": {"stop": [1]}}, 400, 'option "stop" must be of type array'),
    ({"model": "x", "files": {"a.gguf": "sha256:" + "0" * 64}}, 400, "is not in the store; upload it first"),
    ({"model": "x", "files": {"../a.gguf": "sha256:" + "0" * 64}}, 400, "a path in the model's folder"),
    ({"model": "x", "from": "demo", "quantize": "q9"}, 400, "quantization is only supported|preset"),
])  # fmt: skip
def test_create_refuses(client: httpx.Client, root: Path, body: dict[str, Any], status: int, said: str) -> None:
    answer = client.post("/api/create", json={**body, "stream": False})
    assert answer.status_code == status
    assert any(part in answer.json()["error"] for part in said.split("|"))
    assert not (root / "manifests").exists()


@pytest.mark.parametrize("names", [
    ("m.safetensors", "m.safetensors/config.json"), ("m.safetensors", "./m.safetensors"), ("x" * 300 + ".safetensors",),
], ids=["file and folder", "twice", "long"])  # fmt: skip
def test_create_refuses_names_that_make_no_folder(client: httpx.Client, names: tuple[str, ...]) -> None:
    digest = upload(client, b"no weights")
    body = {"model": "mine", "files": dict.fromkeys(names, digest), "stream": False}
    answer = client.post("/api/create", json=body)
    assert (answer.status_code, "path in the model's folder" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(("body", "said"), [
    ({"messages": [{"content": "Hello"}]}, "messages[0]: expected a role of system"),
    ({"messages": [{"role": "user", "content": ["Hello"]}]}, "messages[0]: expected a role of system"),
    ({"template": "{{ .Prompt | }}"}, "the template is not valid, line 1"),
    ({"messages": [{"role": "user", "content": "a", "images": ["/etc/hostname"]}]}, "messages[0].images: expected a"),
    ({"messages": [{"role": "user", "content": "a", "images": "aGk="}]}, "messages[0].images: expected a list"),
    *(({name: "\ud800"}, f"{name}: a text has half of a surrogate pair") for name in ("system", "template", "license")),
    ({"messages": [{"role": "user", "content": "\udc80"}]}, "messages: a text has half of a surrogate pair"),
    ({"parameters": {"stop": ["\ud800"]}}, "parameters: a text has half of a surrogate pair"),
], ids=str)  # fmt: skip
def test_create_refuses_what_no_answer_can_use(client: httpx.Client, body: dict[str, Any], said: str) -> None:
    content = json.dumps({"model": "mine", "from": "demo", "stream": False} | body)
    answer = client.post("/api/create", content=content)
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert client.post("/api/show", json={"model": "mine"}).status_code == 404


def test_create_says_which_file_of_a_folder_is_missing(client: httpx.Client) -> None:
    body = {"model": "mine", "files": {"m.safetensors": upload(client, b"no weights")}, "stream": False}
    answer = client.post("/api/create", json=body)
    told = "there is no config.json beside the safetensors files; give the whole folder"
    assert (answer.status_code, answer.json()) == (400, {"error": told})


def test_many_creates_leave_threads_to_others(
    client: httpx.Client, server: str, gguf: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    waiting = threading.Semaphore(0)

    def slow(*_: object, **__: object) -> None:
        waiting.release()
        assert released.wait(60)

    monkeypatch.setattr("ollama_engine.store.create.quantize_model", slow)
    body = {"files": {"t.gguf": upload(client, gguf)}, "quantize": "q8_0"}

    statuses: list[int] = []

    def create(number: int) -> None:
        statuses.append(httpx.post(f"{server}/api/create", json=body | {"model": f"m{number}"}, timeout=60).status_code)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(70)]
    for thread in threads:
        thread.start()
    try:
        assert all(waiting.acquire(timeout=60) for _ in range(16))
        assert client.get("/api/tags", timeout=30).status_code == 200
        eventually(lambda: statuses.count(503) == len(threads) - 16)
    finally:
        released.set()
        join(*threads)


def test_create_refuses_what_is_no_model(client: httpx.Client, root: Path) -> None:
    named = {"a.gguf": upload(client, b"not GGUF")}
    assert "is no GGUF file" in told(client.post("/api/create", json={"model": "x", "files": named}))[-1]["error"]
    named = {"a.gguf": upload(client, b"GGUF\3\0\0\0")}
    answer = client.post("/api/create", json={"model": "x", "files": named, "stream": False})
    assert (answer.status_code, "a.gguf" not in answer.json()) == (400, True)


@pytest.fixture
def fake(gguf: bytes) -> Iterator[FakeRegistry]:
    with serving() as fake:
        fake.add("me/m/latest", [("model", gguf), ("system", b"Be brief.")])
        yield fake


def test_pull(client: httpx.Client, root: Path, fake: FakeRegistry, gguf: bytes) -> None:
    name = f"http://{fake.host}/me/m"
    events = told(client.post("/api/pull", json={"model": name, "insecure": True}))
    assert [events[0]["status"], events[-1]["status"]] == ["pulling manifest", "success"]
    layer = [event for event in events if event.get("digest") == digest_of(gguf)][-1]
    assert (layer["total"], layer["completed"]) == (len(gguf), len(gguf))
    assert client.get("/api/tags").json()["models"][0]["name"] == f"{fake.host}/me/m:latest"
    assert client.post("/api/pull", json={"name": name, "insecure": True, "stream": False}).json() == {
        "status": "success"
    }


def test_create_pulls_what_it_is_from(
    client: httpx.Client, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By https, since a name does not say that http will do: this registry speaks none."""
    monkeypatch.setattr(TransferSettings, "wait", lambda *_: 0.0)  # between seven tries: half a minute
    events = told(client.post("/api/create", json={"model": "x", "from": f"{fake.host}/me/m"}))
    assert events[0] == {"status": "pulling manifest"}
    assert fake.host in events[-1]["error"]


def test_pull_fails(client: httpx.Client, fake: FakeRegistry) -> None:
    name = f"{fake.host}/me/none"
    events = told(client.post("/api/pull", json={"model": name, "insecure": True}))
    assert events[0] == {"status": "pulling manifest"}
    assert "not found" in events[-1]["error"]
    assert client.post("/api/pull", json={"model": name, "insecure": True, "stream": False}).status_code == 404
    assert client.post("/api/pull", json={}).json() == {"error": "model is required"}
    refused = client.post("/api/pull", json={"model": f"http://{name}"})
    assert (refused.status_code, "insecure protocol http" in refused.json()["error"]) == (400, True)
    assert client.post("/api/push", json={"model": "nothing", "insecure": True}).status_code == 404
    assert client.post("/api/push", json={"model": "hf.co/a/b"}).status_code == 400


@pytest.mark.parametrize("stream", [True, False])
def test_a_registry_that_nobody_reaches_is_one_line_of_the_log(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, *, stream: bool
) -> None:
    with serving() as gone:
        pass
    body = {"model": f"http://{gone.host}/me/other", "insecure": True, "stream": stream}
    answer = client.post("/api/pull", json=body)
    if stream:
        begun, ended = told(answer)
        assert begun == {"status": "pulling manifest"}
    else:
        assert answer.status_code == 500
        ended = answer.json()
    assert ended["error"].startswith(f"{gone.host}: it cannot be reached (")
    (said,) = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert (said.levelname, said.exc_info) == ("WARNING", None)
    assert ended["error"] in said.getMessage()


def test_clients_share_a_pull(client: httpx.Client, server: str, root: Path, fake: FakeRegistry) -> None:
    fake.faults.seconds_per_piece = 0.005
    results: list[Events] = []

    def ask() -> None:
        with httpx.Client(base_url=server, timeout=60) as own:
            results.append(told(own.post("/api/pull", json={"model": f"{fake.host}/me/m", "insecure": True})))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert [events[-1] for events in results] == [{"status": "success"}] * 3
    assert len(fake.blob_requests()) == 3


def test_who_leaves_ends_the_pull_and_the_next_goes_on(client: httpx.Client, root: Path, fake: FakeRegistry) -> None:
    fake.faults.seconds_per_piece = 0.05
    body = {"model": f"{fake.host}/me/m", "insecure": True}
    with client.stream("POST", "/api/pull", json=body) as answer:
        assert next(answer.iter_lines()) == '{"status":"pulling manifest"}'
    fake.faults.seconds_per_piece = 0
    assert told(client.post("/api/pull", json=body))[-1] == {"status": "success"}
    assert not [name for name in files(root) if "partial" in name]


def test_a_full_disk(client: httpx.Client, root: Path, fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ollama_engine.store.pull.shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    body = {"model": f"{fake.host}/me/m", "insecure": True, "stream": False}
    answer = client.post("/api/pull", json=body)
    assert answer.status_code == 507
    assert " KB more, and 1.0 KB are free; " in answer.json()["error"]
    assert not [name for name in files(root) if "partial" in name]


def test_uploads_and_creates_at_once_are_limited(root: Path, gguf: bytes) -> None:
    """Each has a file, a thread and memory of its own; who comes too late is told which limit it is."""
    sent = threading.Event()

    def slowly() -> Iterator[bytes]:
        yield gguf[:1000]
        sent.wait(60)
        yield gguf[1000:]

    app = create_app(ServerSettings(models=root, max_transfers=1, shutdown_timeout=5))
    places = app.state.service.library.places
    with running(app) as address, httpx.Client(base_url=address, timeout=60) as client:
        answers: list[httpx.Response] = []
        path = f"/api/blobs/{digest_of(gguf)}"
        first = threading.Thread(
            target=lambda: answers.append(httpx.post(address + path, content=slowly(), timeout=60))
        )
        first.start()
        eventually(lambda: places._taken == 1)
        files = {"t.gguf": digest_of(gguf)}
        for refused in (
            client.post(f"/api/blobs/{digest_of(b'other')}", content=b"other"),
            client.post("/api/create", json={"model": "t", "files": files}),
            client.post("/api/pull", json={"model": "registry.invalid/a/b", "stream": False}),
        ):
            assert refused.status_code == 503
            assert "max_transfers is 1" in refused.json()["error"]
        sent.set()
        join(first)
        assert answers[0].status_code == 201
        assert client.post("/api/create", json={"model": "t", "files": files}).status_code == 200
        eventually(lambda: places._taken == 0)
