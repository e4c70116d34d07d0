"""The application of config files behind Ray Serve's proxy: `python -m tests.ray.proxied ARGUMENTS`, which are JSON."""

from __future__ import annotations

import json
import logging
import signal
import socket
import sys

import ray
from ray import serve

from ollama_engine.ray import build

QUIET = {"log_level": "WARNING", "enable_access_log": False}


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # which ends Ray, too
    ray.init(
        address="local", include_dashboard=False, num_cpus=2, object_store_memory=100 << 20, log_to_driver=False,
        logging_level=logging.ERROR,
    )  # fmt: skip
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config=QUIET)
    serve.run(build(json.loads(sys.argv[1])), name="ollama-engine", logging_config=QUIET)
    print(f"listening at http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    signal.pause()


def free_port() -> int:
    """Ray Serve takes no 0 for a port that the system chooses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


if __name__ == "__main__":
    main()
