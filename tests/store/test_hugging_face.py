from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("huggingface_hub", reason="the extra `server` is not installed")

from ollama_engine.errors import ModelNotFoundError, RegistryError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.store import ModelName, ModelStore
from ollama_engine.store.hugging_face import HubFile, Repository, choose_model, choose_projector, pull_from_hub
from ollama_engine.store.transfers import TransferProgress, TransferSettings
from tests.convert.test_joining import write_split_llama
from tests.store.layout import files
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import join

SETTINGS = TransferSettings(part_bytes=100_000, retries=2, first_wait=0.01, timeout=20)


def listed(*paths: str) -> list[HubFile]:
    return [HubFile(path, 1000 + number, f"{number:064x}") for number, path in enumerate(paths)]


REPOSITORY = listed(
    "Llama-3.2-1B-Instruct-Q8_0.gguf", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", "Llama-3.2-1B-Instruct-IQ3_XS.gguf",
    "sub/llama-3.2-f16.gguf", "mmproj-model-f16.gguf", "mmproj-model-f32.gguf", "config.json", "model.safetensors",
)  # fmt: skip


@pytest.mark.parametrize(("tag", "chosen"), [
    ("latest", "Llama-3.2-1B-Instruct-Q4_K_M.gguf"), ("Q8_0", "Llama-3.2-1B-Instruct-Q8_0.gguf"),
    ("q8_0", "Llama-3.2-1B-Instruct-Q8_0.gguf"), ("iq3_xs", "Llama-3.2-1B-Instruct-IQ3_XS.gguf"),
    ("F16", "sub/llama-3.2-f16.gguf"), ("llama-3.2-f16.gguf", "sub/llama-3.2-f16.gguf"),
    ("Llama-3.2-1B-Instruct-Q8_0", "Llama-3.2-1B-Instruct-Q8_0.gguf"),
])  # fmt: skip
def test_the_file_of_a_tag(tag: str, chosen: str) -> None:
    assert [file.path for file in choose_model(REPOSITORY, tag)] == [chosen]


@pytest.mark.parametrize(("paths", "chosen"), [
    (["a-Q5_K_M.gguf", "a-Q4_0.gguf"], "a-Q4_0.gguf"), (["a.Q2_K.gguf", "a.Q3_K_S.gguf"], "a.Q2_K.gguf"),
    (["model.gguf"], "model.gguf"), (["a-UD-Q4_K_XL.gguf", "a-BF16.gguf"], "a-UD-Q4_K_XL.gguf"),
    (["gpt-oss-20b-MXFP4.gguf"], "gpt-oss-20b-MXFP4.gguf"),
])  # fmt: skip
def test_the_file_where_no_tag_is_given(paths: Sequence[str], chosen: str) -> None:
    assert [file.path for file in choose_model(listed(*paths), "latest")] == [chosen]


def test_files_that_cannot_be_chosen() -> None:
    with pytest.raises(ModelNotFoundError, match="no GGUF file for 'Q6_K'; it has F16, IQ3_XS, Q4_K_M, Q8_0"):
        choose_model(REPOSITORY, "Q6_K")
    with pytest.raises(ModelNotFoundError, match="it has no GGUF file at all"):
        choose_model(listed("model.safetensors"), "latest")


def test_all_parts_of_a_split_model() -> None:
    files_ = listed("x-q8_0-00002-of-00002.gguf", "x-q8_0-00001-of-00002.gguf", "x-q4_0-00001-of-00002.gguf",
                    "y-q8_0-00001-of-00002.gguf", "x-q8_0-00001-of-00001.gguf")  # fmt: skip
    chosen = [file.path for file in choose_model(files_, "q8_0")]
    assert chosen == ["x-q8_0-00001-of-00002.gguf", "x-q8_0-00002-of-00002.gguf"]


def test_the_projector() -> None:
    found = choose_projector(REPOSITORY)
    assert found is not None
    assert found.path == "mmproj-model-f16.gguf"
    assert choose_projector(listed("a-Q8_0.gguf")) is None


# -- a hub on this machine ---------------------------------------------------------------------------------------------


class _Hub(BaseHTTPRequestHandler):
    contents: dict[str, bytes]
    seen: list[tuple[str, str]]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.seen.append((path, self.headers.get("Authorization", "")))
        if path == "/api/models/org/repo":
            siblings: list[dict[str, Any]] = [
                {
                    "rfilename": name, "size": len(data), "blobId": "0" * 40,
                    "lfs": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 130},
                }
                for name, data in self.contents.items()
            ]  # fmt: skip
            siblings.append({"rfilename": "README.md", "size": 5, "blobId": "0" * 40})
            self._send(200, json.dumps({"id": "org/repo", "siblings": siblings}).encode())
        elif path.startswith("/org/repo/resolve/main/"):
            self._send(200, self.contents[path.removeprefix("/org/repo/resolve/main/")])
        else:
            self._send(404, b'{"error":"Repository not found"}', {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        wanted = self.headers.get("Range")
        headers = dict(headers or {})
        if wanted and status == 200:
            begin, end = map(int, wanted.removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            status, data = 206, data[begin : end + 1]
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def hub_of(contents: dict[str, bytes]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    seen: list[tuple[str, str]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"contents": contents, "seen": seen}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        join(thread)


async def pulled(endpoint: str, store: ModelStore, name: str) -> list[TransferProgress]:
    told: list[TransferProgress] = []
    repository = Repository(ModelName.parse(name), SETTINGS, endpoint=endpoint)
    async with repository:
        await pull_from_hub(repository, store, told.append)
    return told


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return Path(write_tiny_llama(tmp_path_factory.mktemp("gguf") / "tiny.gguf").path).read_bytes()


@pytest.fixture(autouse=True)
def no_token_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "secret")


def test_pull(tmp_path: Path, gguf: bytes) -> None:
    store, projector = ModelStore(tmp_path), b"GGUF that sees"
    contents = {"a-Q8_0.gguf": os.urandom(10), "a-Q4_K_M.gguf": gguf, "mmproj-F16.gguf": projector}
    with hub_of(contents) as (endpoint, seen):
        told = asyncio.run(pulled(endpoint, store, "hf.co/org/repo"))
        read = len(seen)
        asyncio.run(pulled(endpoint, store, "hf.co/org/repo"))
    assert (told[0].status, told[-1].status) == ("pulling manifest", "success")
    found = store.find("hf.co/org/repo")
    assert found.model_path.read_bytes() == gguf
    assert found.projector_path is not None
    assert found.projector_path.read_bytes() == projector
    assert found.config["model_family"] == "llama"
    assert len(files(tmp_path)) == 4
    assert {token for path, token in seen if "resolve" in path} == {"Bearer secret"}
    assert not any("resolve" in path for path, _ in seen[read:]), "what is there is not read again"


def test_a_split_model_is_joined(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    parts = write_split_llama(tmp_path / "parts")
    with hub_of({path.name: path.read_bytes() for path in parts}) as (endpoint, seen):
        told = asyncio.run(pulled(endpoint, store, "hf.co/org/repo"))
        read = len(seen)
        again = asyncio.run(pulled(endpoint, store, "hf.co/org/repo"))
    assert "joining parts" in [progress.status for progress in told]
    assert (told[-1].status, again[-1].status) == ("success", "success")
    assert not any("resolve" in path for path, _ in seen[read:]), "what is joined is not read again"
    assert len(files(store.folder)) == 3, "the parts are gone"
    with GGUFFile(store.find("hf.co/org/repo").model_path) as file:
        assert len(file.files) == 1
        assert len(file.tensors) == 21


def test_what_is_not_there(tmp_path: Path, gguf: bytes) -> None:
    store = ModelStore(tmp_path)
    with hub_of({"a-Q8_0.gguf": gguf}) as (endpoint, _):
        with pytest.raises(ModelNotFoundError, match="it has Q8_0"):
            asyncio.run(pulled(endpoint, store, "hf.co/org/repo:Q2_K"))
        with pytest.raises(ModelNotFoundError, match="no such repository"):
            asyncio.run(pulled(endpoint, store, "hf.co/org/other"))
    with pytest.raises(RegistryError, match=endpoint):
        asyncio.run(pulled(endpoint, store, "hf.co/org/repo"))
    assert store.entries() == []
