"""WorkerLedger: stands between an Engine and a worker, and keeps account of the memory that the worker gives."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

from ollama_engine.ml.device.worker_address import read_address
from tests.support.waiting import join

ALLOC_BUFFER, FREE_BUFFER = 0, 4
ANSWERED = {0, 1, 2, 3, 7, 8, 9, 11, 13, 14, 15}
"""Commands of ggml's protocol that have an answer."""


class WorkerLedger:
    """Passes one connection on after the other.

    Attributes:
        address: what devices are named for an Engine.
        held: bytes of each buffer that the worker has given and not got back, on this connection.
        most: the largest sum of these.
    """

    def __init__(self, worker: str) -> None:
        self._worker = read_address(worker)[0]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"rpc://127.0.0.1:{self._listener.getsockname()[1]}"
        self.held: dict[int, int] = {}
        self.most = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def total(self) -> int:
        """Bytes that the worker has given."""
        return sum(self.held.values())

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                with client, socket.create_connection((self._worker.host, self._worker.port)) as worker:
                    for end in (client, worker):
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self.held = {}
                    with contextlib.suppress(EOFError, ConnectionError):
                        while True:
                            self._pass_on(client, worker)

    def _pass_on(self, client: socket.socket, worker: socket.socket) -> None:
        command, size = struct.unpack("<BQ", _read(client, 9))
        body = _read(client, size)
        worker.sendall(struct.pack("<BQ", command, size) + body)
        if command == FREE_BUFFER:
            del self.held[struct.unpack("<Q", body)[0]]
        if command in ANSWERED:
            head = _read(worker, 8)
            answer = _read(worker, struct.unpack("<Q", head)[0])
            if command == ALLOC_BUFFER:
                buffer, nbytes = struct.unpack("<QQ", answer)
                self.held[buffer] = nbytes
                self.most = max(self.most, self.total)
            client.sendall(head + answer)

    def __enter__(self) -> WorkerLedger:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        join(self._thread)


def _read(source: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = source.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
