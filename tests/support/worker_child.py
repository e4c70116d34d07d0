"""Serves the CPU of this machine with one thread, at a port of loopback that it writes first.

The argument, if there is one, says how many bytes it lends.
"""

from __future__ import annotations

import os
import socket
import sys

from ollama_engine.child_process import end_with_parent
from ollama_engine.ml.device.device import devices
from ollama_engine.ml.workers.workers import serve_devices


def main() -> None:
    end_with_parent(lambda: os._exit(0))
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    print(f"rpc://127.0.0.1:{port}", flush=True)
    serve_devices("127.0.0.1", port, devices()[-1:], 1, memory=int(sys.argv[1]) if sys.argv[1:] else None)


main()
