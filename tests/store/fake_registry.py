"""A registry in this process, that can be told to fail in every way that tests want."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.store.layout import CONFIG, DOCKER, LAYER
from tests.support.waiting import join


@dataclass
class Faults:
    """The faults of a registry."""

    status: list[int] = field(default_factory=list)
    """Answered to the next requests for blobs, one each, instead of the blob."""
    cut_after: list[int] = field(default_factory=list)
    """The next blob responses end after so many bytes, one each."""
    wrong_bytes: int = 0
    """So many of the next blob responses have one byte that is wrong."""
    ignores_ranges: bool = False
    wants_token: bool = False
    compressed: bytes = b""
    """Sent with "Content-Encoding: gzip" instead of manifests and tokens."""
    seconds_per_piece: float = 0.0
    goes_on: threading.Event = field(default_factory=threading.Event)
    """Clear: of each response, no more than the first piece comes until it is set."""

    def __post_init__(self) -> None:
        self.goes_on.set()


@dataclass
class FakeRegistry:
    faults: Faults = field(default_factory=Faults)
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    """By "namespace/model/tag"."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """(method, path, Range) of all requests, in order."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    host: str = ""

    def add(self, name: str, layers: list[tuple[str, bytes]]) -> None:
        described = [{"mediaType": LAYER + kind, **self._blob(data)} for kind, data in layers]
        config = {"mediaType": CONFIG, **self._blob(b'{"model_format": "gguf"}')}
        manifest = {"schemaVersion": 2, "mediaType": DOCKER, "config": config, "layers": described}
        self.manifests[name] = json.dumps(manifest).encode()

    def _blob(self, data: bytes) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return {"digest": digest, "size": len(data)}

    def blob_requests(self) -> list[tuple[str, str]]:
        """(digest, Range) of all GETs of blobs."""
        return [
            (path.rpartition("/")[2], part)
            for method, path, part in self.asked
            if method == "GET" and "/blobs/" in path
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: FakeRegistry

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        fake, faults = self.registry, self.registry.faults
        with fake.lock:
            fake.asked.append((self.command, self.path, self.headers.get("Range", "")))
        if faults.compressed and re.search("/token|/manifests/", self.path):
            self._send(200, faults.compressed, {"Content-Encoding": "gzip"})
            return
        if self.path.startswith("/token"):
            self._send(200, json.dumps({"token": "let-me-in"}).encode())
            return
        if faults.wants_token and self.headers.get("Authorization") != "Bearer let-me-in":
            realm = f'Bearer realm="http://{fake.host}/token",service="fake",scope="repository:a:pull"'
            self._send(401, b"{}", {"WWW-Authenticate": realm})
            return
        found = re.fullmatch(r"/v2/([^/]+/[^/]+)/(manifests|blobs)/(.+)", self.path)
        if found is None:
            self._send(404, b"{}")
        elif found[2] == "manifests":
            data = fake.manifests.get(f"{found[1]}/{found[3]}")
            self._send(404 if data is None else 200, data or b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
        elif found[3] not in fake.blobs:
            self._send(404, b"{}")
        else:
            self._blob(fake.blobs[found[3]])

    do_HEAD = do_GET  # noqa: N815

    def _blob(self, data: bytes) -> None:
        faults = self.registry.faults
        with self.registry.lock:
            status = faults.status.pop(0) if faults.status else 200
            cut = faults.cut_after.pop(0) if faults.cut_after else None
            wrong = faults.wrong_bytes > 0
            faults.wrong_bytes -= wrong
        if status != 200:
            self._send(status, b"no")
            return
        headers = {}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted and not faults.ignores_ranges:
            begin, end, total = int(wanted[1]), int(wanted[2]) + 1, len(data)
            data, status = data[begin:end], 206
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{total}"
        if wrong:
            data = bytes([data[0] ^ 1]) + data[1:]
        self._send(status, data, headers, cut)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        pause = self.registry.faults.seconds_per_piece
        body = data if cut is None else data[:cut]
        try:
            for at in range(0, len(body), 1 << 14):
                self.wfile.write(body[at : at + (1 << 14)])
                time.sleep(pause)
                self.registry.faults.goes_on.wait(30)
        except OSError:
            self.close_connection = True
        if cut is not None:
            self.close_connection = True


@contextmanager
def serving() -> Iterator[FakeRegistry]:
    """A registry on a free port of this machine, until the block ends."""
    fake = FakeRegistry()
    handler = type("Handler", (_Handler,), {"registry": fake})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    fake.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        join(thread)
