"""`ollama-engine devices`: what this machine and this build can compute on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import ollama_engine
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.tables import table
from ollama_engine.size_texts import size

if TYPE_CHECKING:
    from ollama_engine.ml.device.device_info import Device

__all__ = ["add_arguments", "main", "refuse_unknown", "workers_devices"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("--device", metavar="rpc://HOST:PORT", action="append", dest="devices", default=[],
                        help="also list the devices of this worker; may be repeated")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a JSON list with one object for each device")


def main(args: argparse.Namespace) -> None:
    for name in args.devices:
        _check_address(name)
    devices = (*ollama_engine.Engine.devices(), *workers_devices(args.devices))
    if args.json:
        print(json.dumps([device_facts(device) for device in devices], indent=2))
        return
    rows = [("name", "kind", "library", "memory", "free", "description")]
    for d in devices:
        memory = (size(d.memory_total), size(d.memory_free)) if d.memory_total else ("-", "-")
        rows.append((d.name, d.kind, f"{d.library} {d.index}", *memory, d.description))
    print(table(rows, right=(3, 4)))
    for d in devices:
        if d.library == "RPC":
            continue
        print(f"\n{d.name} features: {d.feature_text}")


def workers_devices(names: Sequence[str] | None) -> tuple[Device, ...]:
    """The devices of the workers that these names of devices mean. Raises ConfigError, DeviceError."""
    if not names:
        return ()
    from ollama_engine.ml.workers.worker_client import devices_of_workers  # noqa: PLC0415 (few have workers)

    return devices_of_workers(names)


def refuse_unknown(names: Iterable[str], devices: Iterable[Device]) -> None:
    """Raise UsageError for a name of none of these devices, ConfigError for no address. No worker is asked."""
    there = [device.name for device in devices if device.kind != "cpu"]
    for name in names:
        if "://" in name:
            _check_address(name)
        elif name not in there:
            told = ", ".join(there) or "none beside the CPU"
            raise UsageError(
                f"--device names {name!r}, which does not exist; there are: {told}; a worker is rpc://HOST:PORT"
            )


def _check_address(name: str) -> None:
    """Raise ConfigError for what is not the address of a worker."""
    from ollama_engine.ml.device.worker_address import read_address  # noqa: PLC0415 (--help needs none)

    read_address(name)


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
