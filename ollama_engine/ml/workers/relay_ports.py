"""RelayPorts: at which ports of loopback ggml has been told of which worker.

ggml keeps for good what it learns of an address: how many devices there are, the alignment and largest size of their
buffers, and the sizes that tensors take there (`reg_map`, `buft_map` and `cache` in ggml-rpc.cpp). The system gives a
port again after some hundred connections, and ggml would then use what it knows of another worker. So a port is for one
worker with the same devices, and is used again for these first: ggml's maps grow with workers, not with connections.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress

from ollama_engine.errors import DeviceError

__all__ = ["PORTS", "RelayPorts"]

LOOPBACK = "127.0.0.1"
ATTEMPTS = 32


class RelayPorts:
    """Ports that ggml knows, each with the worker that it is for. For any thread.

    A worker's name must be equal only where all that ggml keeps is the same. There is no lock, which a fork could
    leave held: an entry is changed only by the thread whose socket listens at its port.
    """

    def __init__(self) -> None:
        self._workers: dict[int, object] = {}
        """None: a relay listens there, or what ggml knows is no worker's."""

    def listen(self, worker: object) -> socket.socket:
        """Listen where ggml knows this worker and no relay listens, or knows nothing. Raises DeviceError."""
        name = _of_this_process(worker)
        for port in [port for port, known in list(self._workers.items()) if known == name]:
            with suppress(OSError):  # it is taken, by another thread or program
                listener = socket.create_server((LOOPBACK, port))
                if self._workers[port] == name:
                    self._workers[port] = None
                    return listener
                listener.close()
        with ExitStack() as refused:  # these stay open, so that the system gives another port
            for _ in range(ATTEMPTS):
                try:
                    listener = socket.create_server((LOOPBACK, 0))
                except OSError as error:
                    raise DeviceError(f"no port of {LOOPBACK} for the connection to a worker: {error}") from None
                port = listener.getsockname()[1]
                if port not in self._workers:
                    self._workers[port] = None
                    return listener
                refused.enter_context(listener)
        raise DeviceError(
            f"no port of {LOOPBACK} for the connection to a worker: the last {ATTEMPTS} that the system gave were used "
            f"for others, as {len(self._workers)} were since this program began",
            advice=["start the program again"],
        )

    def give_back(self, port: int, worker: object) -> None:
        """ggml knows this worker there, and nothing else; its relay is about to end."""
        self._workers[port] = _of_this_process(worker)


def _of_this_process(worker: object) -> tuple[int, object]:
    """ggml's connections of before a fork have no thread in the child, and still stand in its map."""
    return os.getpid(), worker


PORTS = RelayPorts()
"""The ports of this process: ggml's maps are global, too."""
