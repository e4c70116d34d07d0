"""`ollama-engine stop`: has a running server unload a model, when its requests have ended."""

from __future__ import annotations

import argparse

from ollama_engine.cli.serving.server_client import ask

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("model", metavar="NAME", help="a model that ollama-engine ps shows")


def main(args: argparse.Namespace) -> None:
    ask("/api/generate", {"model": args.model, "keep_alive": 0, "stream": False})
    print(f"stopped {args.model}")
