"""`ollama-engine devices`: what this machine and this build can compute on."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import ollama_engine
from ollama_engine.cli.tables import size, table

if TYPE_CHECKING:
    from ollama_engine.ml.device_info import Device

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("--json", action="store_true", help="print a JSON list with one object for each device")


def main(args: argparse.Namespace) -> None:
    devices = ollama_engine.Engine.devices()
    if args.json:
        print(json.dumps([device_facts(device) for device in devices], indent=2))
        return
    rows = [("name", "kind", "library", "memory", "free", "description")]
    for d in devices:
        memory = (size(d.memory_total), size(d.memory_free)) if d.memory_total else ("-", "-")
        rows.append((d.name, d.kind, f"{d.library} {d.index}", *memory, d.description))
    print(table(rows, right=(3, 4)))
    for d in devices:
        print(f"\n{d.name} features: {_features(d) or 'none'}")


def device_facts(device: Device) -> dict[str, Any]:
    """One device for JSON; memory in bytes."""
    return {
        "name": device.name,
        "kind": device.kind,
        "library": device.library,
        "index": device.index,
        "description": device.description,
        "memory_total": device.memory_total,
        "memory_free": device.memory_free,
        "id": device.id,
        "features": dict(device.features),
    }


def _features(device: Device) -> str:
    """Instruction sets by name, with their value where it is not "1"."""
    return " ".join(name if value == "1" else f"{name}={value}" for name, value in device.features.items())
