"""`ollama-engine push`: publishes a model of the store in a registry."""

from __future__ import annotations

import argparse

from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.store import model_store
from ollama_engine.cli.transfers import MISSING, follow, registry_name, transfer_settings
from ollama_engine.store.hub_names import is_hub_name
from ollama_engine.store.transfers import Report

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("model", metavar="NAME", help="a model of the store, whose name says where it goes: "
                        "HOST/USER/MODEL[:TAG]; ollama-engine cp gives it one")  # fmt: skip
    parser.add_argument("--insecure", action="store_true", help="speak http to the registry")


def main(args: argparse.Namespace) -> None:
    name = registry_name(args.model, insecure=args.insecure)
    if is_hub_name(name):
        raise UsageError(f"{name.host} takes no models by this protocol; its own tools upload files")
    try:
        from ollama_engine.store import pull, registry  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError as error:
        raise UsageError(f"{MISSING} ({error.name} is missing)") from None

    async def work(report: Report) -> None:
        async with registry.Registry(name, transfer_settings(), insecure=args.insecure) as target:
            await pull.push(target, model_store(), report)

    follow(f"pushing {name.short}", work)
    print(f"pushed {name.short}")
