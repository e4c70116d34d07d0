"""Models that are downloaded or published while a command waits: settings, and progress on a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.store.hub_names import is_hub_name
from ollama_engine.store.names import ModelName
from ollama_engine.store.transfers import TransferSettings

if TYPE_CHECKING:
    from ollama_engine.store.model_store import ModelStore
    from ollama_engine.store.transfers import Report, TransferProgress

__all__ = ["MISSING", "follow", "pull_model", "registry_name", "transfer_settings"]

STREAMS_VARIABLE = "OLLAMA_MAX_TRANSFER_STREAMS"
MISSING = "this needs packages that are not installed: pip install 'ollama_engine[server]'"


def pull_model(store: ModelStore, model: str, *, insecure: bool) -> None:
    """Download a model, with a bar on a terminal. Raises UsageError, and what pulls raise."""
    name = registry_name(model, insecure=insecure)
    try:
        from ollama_engine.store import hugging_face, pull, registry  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError as error:
        raise UsageError(f"{MISSING} ({error.name} is missing)") from None

    async def work(report: Report) -> None:
        if is_hub_name(name):
            async with hugging_face.Repository(name, transfer_settings()) as repository:
                await hugging_face.pull_from_hub(repository, store, report)
        else:
            async with registry.Registry(name, transfer_settings(), insecure=insecure) as source:
                await pull.pull(source, store, report)

    follow(f"pulling {name.short}", work)


def registry_name(model: str, *, insecure: bool) -> ModelName:
    """The name of a model in a registry. Raises UsageError for http without `insecure`."""
    if model.strip().lower().startswith("http://") and not insecure:
        raise UsageError("http is not encrypted; --insecure takes it")
    return ModelName.parse(model)


def transfer_settings() -> TransferSettings:
    """How transfers are made. Raises UsageError."""
    text = os.environ.get(STREAMS_VARIABLE, "").strip(" \t\"'")
    if not text:
        return TransferSettings()
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 1000):
        raise UsageError(f"{STREAMS_VARIABLE} is a number from 1 to 999, got {text!r:.40}")
    return TransferSettings(streams=int(text))


def follow(title: str, work: Callable[[Report], Coroutine[Any, Any, None]]) -> None:
    """Do asynchronous work, and show its progress on standard error where that is a terminal."""
    with StatusLine(sys.stderr) as line:
        bar = LoadingBar(line, title, eta=True)
        known: dict[str, tuple[int, int]] = {}

        def report(progress: TransferProgress) -> None:
            if progress.total:
                known[progress.digest] = (progress.completed, progress.total)
                bar(sum(done for done, _ in known.values()), sum(total for _, total in known.values()))
            else:
                line.show(progress.status)

        asyncio.run(work(report))
