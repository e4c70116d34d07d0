"""`ollama-engine ps`: the models that a running server has loaded."""

from __future__ import annotations

import argparse
import json
import re
import time
from datetime import datetime
from typing import Any

from ollama_engine.cli.serving.server_client import ask
from ollama_engine.cli.store import ID_CHARACTERS
from ollama_engine.cli.tables import span, table
from ollama_engine.size_texts import decimal_size

__all__ = ["add_arguments", "main"]

FOR_EVER = 100 * 365 * 86400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("--json", action="store_true", help="print what the server answers to /api/ps")


def main(args: argparse.Namespace) -> None:
    answer = ask("/api/ps")
    if args.json:
        print(json.dumps(answer, indent=2))
        return
    head = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL")
    print(table([head, *(_row(model) for model in answer["models"])], gap=4))


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    size = int(model["size"])
    return (
        model["name"],
        model["digest"][:ID_CHARACTERS],
        decimal_size(size),
        _processor(size, int(model.get("size_vram", 0))),
        str(model.get("context_length", "-")),
        _until(model.get("expires_at", "")),
    )


def _processor(size: int, on_gpu: int) -> str:
    if not on_gpu:
        return "100% CPU"
    if on_gpu >= size:
        return "100% GPU"
    share = round(100 * (size - on_gpu) / size)
    return f"{share}%/{100 - share}% CPU/GPU"


def _until(text: str) -> str:
    whole = re.sub(r"\.\d+", "", text).replace("Z", "+00:00")  # Python 3.10 reads no Z and no nine digits
    try:
        left = datetime.fromisoformat(whole).timestamp() - time.time()
    except ValueError:  # a year that Python's dates do not have
        return "Forever"
    if left > FOR_EVER:
        return "Forever"
    return f"{span(left)} from now" if left >= 1 else "Stopping..."
