"""`ollama-engine runner`: one model behind the protocol that a server speaks with the processes of its models."""

from __future__ import annotations

import argparse
import os

from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.paths import existing

__all__ = ["add_arguments", "main"]

TOKEN_VARIABLE = "OLLAMA_ENGINE_RUNNER_TOKEN"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("--model", metavar="PATH", required=True, help="the GGUF file; /load loads it")
    parser.add_argument("--port", metavar="N", type=int, help="TCP port of 127.0.0.1 to listen at")
    parser.add_argument("--socket", metavar="PATH", help="Unix socket to listen at, instead of a port")
    parser.add_argument(
        "--child", action="store_true", help="end when standard input ends, and with the parent process"
    )
    token = f'  {TOKEN_VARIABLE}  what requests have to bear as "Authorization: Bearer TOKEN", if it is set'
    parser.epilog = (parser.epilog or "").replace("environment:\n", f"environment:\n{token}\n")


def main(args: argparse.Namespace) -> None:
    if (args.port is None) == (args.socket is None):
        raise UsageError("give --port or --socket")
    model = str(existing(args.model))
    try:
        from ollama_engine.server.isolation.model_server import run  # noqa: PLC0415 (an extra has what it needs)
    except ModuleNotFoundError as error:
        raise UsageError(f"runner needs pip install 'ollama_engine[server]' ({error.name} is missing)") from None
    run(model, socket=args.socket, port=args.port, child=args.child, token=os.environ.get(TOKEN_VARIABLE, ""))
