"""`ollama-engine worker`: lets programs on other machines compute with the devices of this one."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ollama_engine.child_process import end_with_parent, start_child
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.sizes import read_size
from ollama_engine.cli.tables import table
from ollama_engine.errors import DeviceError
from ollama_engine.ml.device.device import devices as all_devices
from ollama_engine.ml.device.placement import choose_threads
from ollama_engine.ml.device.worker_address import DEFAULT_PORT, WorkerAddress
from ollama_engine.ml.workers.workers import serve_devices
from ollama_engine.size_texts import size
from ollama_engine.worker.front import WorkerFront
from ollama_engine.worker.weight_cache import WeightCache

if TYPE_CHECKING:
    from ollama_engine.ml.device.device_info import Device

__all__ = ["add_arguments", "main"]

LOOPBACK = "127.0.0.1"
LEAST_MEMORY = 1 << 20
"""Bytes. Less holds no weights, and an Engine takes 0 or 1 for a device that cannot say how many it has."""
WARNING = """\
warning: every program that reaches {address} can use these devices, read and write what is computed there, and very
likely run programs as this user: ggml's protocol has no password and no encryption, and trusts what it is sent. Let
only machines that you trust reach it: a network of their own, a firewall, or a tunnel (ssh -L) to a worker on loopback.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("--host", metavar="ADDRESS", default=LOOPBACK, help="IPv4 address of this machine to listen "
                        f"at; 0.0.0.0 for all (default: {LOOPBACK}, which only this machine reaches)")  # fmt: skip
    parser.add_argument("--port", metavar="N", type=int, default=DEFAULT_PORT, help="TCP port; 0 has the system choose "
                        f"(default: {DEFAULT_PORT})")  # fmt: skip
    parser.add_argument("--device", metavar="NAME", action="append", help="a device to serve, by the name that "
                        "`devices` lists; may be repeated (default: all GPUs, or the CPU)")  # fmt: skip
    parser.add_argument("-t", "--threads", metavar="N", type=int, help="CPU threads (default: the physical cores)")
    parser.add_argument("--cache", metavar="FOLDER", help="keep large weights here, so that a program that comes again "
                        "need not send them again")  # fmt: skip
    parser.add_argument("--memory", metavar="SIZE", type=read_size, help="most memory of each device that "
                        "each program gets, such as 8GiB; two may take twice that (default: what is free)")  # fmt: skip
    parser.add_argument("--child", metavar="DESCRIPTOR", type=int, help=argparse.SUPPRESS)


def main(args: argparse.Namespace) -> None:
    host = _checked_host(args.host)
    if not 0 <= args.port <= 65535:
        raise UsageError(f"--port is 0 to 65535, got {args.port}")
    if args.threads is not None and not 1 <= args.threads <= 512:
        raise UsageError(f"--threads is 1 to 512, got {args.threads}")
    if args.memory is not None and args.memory < LEAST_MEMORY:
        raise UsageError(f"--memory is at least {size(LEAST_MEMORY)}, got {args.memory} bytes")
    if args.cache is not None and os.path.exists(args.cache) and not os.path.isdir(args.cache):
        raise UsageError(f"--cache is a folder, made where it does not exist; {args.cache!r} is a file")
    devices = chosen_devices(args.device)
    if args.child is not None:
        _serve(host, args, devices)
    else:
        _watch_over(host, args, devices)


def _checked_host(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address("127.0.0.1" if text == "localhost" else text))
    except ValueError:
        raise UsageError(f"--host is an IPv4 address of this machine, such as 192.168.1.5, got {text!r}") from None


def chosen_devices(names: Sequence[str] | None) -> tuple[Device, ...]:
    """The devices of these names, or all GPUs, or the CPU. Raises UsageError for a name of none."""
    known = all_devices()
    if not names:
        gpus = [d for d in known if d.kind == "gpu"] or [d for d in known if d.kind == "igpu"]
        return tuple(gpus) or tuple(d for d in known if d.kind == "cpu")
    by_name = {device.name: device for device in known}
    for name in names:
        if name not in by_name:
            raise UsageError(f"--device names {name!r}, which does not exist; there are: {', '.join(by_name)}")
    return tuple(by_name[name] for name in dict.fromkeys(names))


# -- the process that serves -------------------------------------------------------------------------------------------


def _serve(host: str, args: argparse.Namespace, devices: tuple[Device, ...]) -> None:

    faulthandler.enable()  # a driver that fails leaves a line, too
    end_with_parent(lambda: os._exit(0))
    serve_devices(host, args.port, devices, choose_threads(args.threads), args.cache, args.memory, args.child)
    raise DeviceError("the process that hands over connections has gone")


# -- the process that people start -------------------------------------------------------------------------------------


def _watch_over(host: str, args: argparse.Namespace, devices: tuple[Device, ...]) -> None:
    """Listen, and have a process serve each program that comes."""
    try:
        cache = None if args.cache is None else WeightCache(args.cache)
    except OSError as error:
        raise UsageError(f"--cache {args.cache!r} cannot be made or written: {error.strerror}") from None
    listener = _listener(host, args.port)
    command = [sys.executable, "-m", "ollama_engine", "worker"]
    command += [part for device in devices for part in ("--device", device.name)]
    command += ["--threads", str(args.threads)] if args.threads is not None else []
    command += ["--memory", str(args.memory)] if args.memory is not None else []

    def start(connections: int, folder: str | None) -> subprocess.Popen[bytes]:
        more = ["--child", str(connections)] if folder is None else ["--child", str(connections), "--cache", folder]
        return start_child([*command, *more], descriptors=[connections])

    def tell(text: str) -> None:
        print(f"error: {text}", file=sys.stderr, flush=True)

    front = WorkerFront(listener, start, tell, cache)
    with _ended_by_signals():
        try:
            front.begin()
            _announce(host, listener.getsockname()[1], devices, args.memory)
            front.serve()
        finally:
            front.close()


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises DeviceError where the port is taken, or the address is not this machine's."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise DeviceError(
            f"cannot listen at {WorkerAddress(host, port)}: {os.strerror(error.errno or 0)}",
            advice=["give an address of this machine with --host, and a port that is free with --port (0: any)"],
        ) from None


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have SIGTERM end this process as Ctrl-C does, so that the child is ended, too."""

    def end(_: int, __: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _announce(host: str, port: int, devices: tuple[Device, ...], memory: int | None) -> None:
    address = WorkerAddress(host, port)
    rows = [(d.name, d.description, _lent(d, memory)) for d in devices]
    print(table(rows))
    if not ipaddress.IPv4Address(host).is_loopback:
        print(WARNING.format(address=address), file=sys.stderr, flush=True)
    print(f"serving at {address}", flush=True)


def _lent(device: Device, memory: int | None) -> str:
    """How much memory of a device programs get."""
    if memory is None:
        return f"{size(device.memory_free)} free of {size(device.memory_total)}"
    return f"{size(min(memory, device.memory_free))} of {size(device.memory_total)}"
