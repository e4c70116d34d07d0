"""WorkerClient: asks a worker, before ggml does, whether it is there, speaks this version, and answers.

ggml's client ends the process where a worker does not; here each of these is an error. The protocol is that of ggml's
RPC backend: a request is a command (1 byte), the size of its body (8) and the body; an answer is a size and a body.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable

from ollama_engine.closing import Closing
from ollama_engine.errors import ConfigError, DeviceError, Option
from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.device.worker_address import SCHEME, WorkerAddress, read_address

__all__ = ["HELLO_SIZE", "PROTOCOL", "WorkerClient", "devices_of_workers", "keep_alive"]

PROTOCOL = (7, 0)
"""Major and minor version of ggml's protocol; a worker's minor version may be lower."""
CAPABILITIES = 24
"""Bytes in which both sides say which transports they have beside TCP; zeros: none."""
HELLO_SIZE = 4 + CAPABILITIES
HELLO, DEVICE_COUNT, DEVICE_MEMORY, ALIGNMENT, LARGEST_BUFFER = 14, 15, 11, 1, 2

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
"""A worker may start a process for this program first."""

SILENT_SECONDS = 30
"""How long a connection may be without any sign of the other machine, until the system ends it."""


class WorkerClient(Closing):
    """A connection to a worker on which HELLO has been said. Raises DeviceError where that fails."""

    def __init__(self, address: WorkerAddress) -> None:
        self.address = address
        self._socket = _connected(address)
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            self.hello = self._ask(HELLO, bytes(CAPABILITIES), HELLO_SIZE)
            self._check_version()
        except BaseException:
            self.close()
            raise

    def _check_version(self) -> None:
        major, minor, patch = self.hello[:3]
        if major != PROTOCOL[0] or minor > PROTOCOL[1]:
            ours = ".".join(map(str, PROTOCOL))
            raise DeviceError(
                f"the worker at {self.address} speaks version {major}.{minor}.{patch} of ggml's protocol, this build "
                f"{ours}",
                advice=["install the same version of ollama_engine on both machines"],
            )

    def device_count(self) -> int:
        (count,) = struct.unpack("<I", self._ask(DEVICE_COUNT, b"", 4))
        return int(count)

    def memory(self, device: int) -> tuple[int, int]:
        """Free bytes of a device, and all."""
        free, total = struct.unpack("<QQ", self._ask(DEVICE_MEMORY, struct.pack("<I", device), 16))
        return int(free), int(total)

    def devices(self) -> tuple[Device, ...]:
        """The worker's devices. ggml's protocol says how much memory they have, and nothing else."""
        memory = [self.memory(i) for i in range(self.device_count())]
        return tuple(
            Device(
                name=str(self.address) if len(memory) == 1 else f"{self.address}/{i}",
                kind="gpu", library="RPC", index=i,
                description=f"device {i} of the worker at {self.address.host}", memory_total=total, memory_free=free,
            )
            for i, (free, total) in enumerate(memory)
        )  # fmt: skip

    def kept(self, devices: Iterable[Device]) -> tuple[tuple[int, ...], ...]:
        """Identity of these devices, as far as the protocol tells: memory, alignment and largest buffer of each.

        It does not tell the sizes that tensors take, which ggml keeps too: devices that are equal in all of these may
        differ there.
        """
        return tuple(
            (device.memory_total, *(self._number(command, device.index) for command in (ALIGNMENT, LARGEST_BUFFER)))
            for device in devices
        )

    def _number(self, command: int, device: int) -> int:
        (found,) = struct.unpack("<Q", self._ask(command, struct.pack("<I", device), 8))
        return int(found)

    def detach(self) -> int:
        """The socket's descriptor, which is the caller's to close from now on."""
        self._socket.settimeout(None)
        keep_alive(self._socket)
        return self._socket.detach()

    def close(self) -> None:
        """End the connection; the worker frees what it took for it. Safe to call twice."""
        self._socket.close()

    def _ask(self, command: int, body: bytes, size: int) -> bytes:
        try:
            self._socket.sendall(struct.pack("<BQ", command, len(body)) + body)
            (given,) = struct.unpack("<Q", self._read(8))
            answer = self._read(size) if given == size else b""
        except TimeoutError:
            raise DeviceError(
                f"the worker at {self.address} takes connections and does not answer",
                advice=["wait until other programs have ended: it is busy, or serves as many as it can"],
            ) from None
        except OSError as error:
            raise self._no_worker(error.strerror or str(error)) from None
        if len(answer) != size:
            raise self._no_worker(f"it answered {given} bytes instead of {size}")
        return answer

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError(0, "it closed the connection")
            data += part
        return bytes(data)

    def _no_worker(self, why: str) -> DeviceError:
        return DeviceError(
            f"what listens at {self.address} is no worker of this version: {why}",
            advice=["install the same version of ollama_engine on both machines"],
        )


def devices_of_workers(names: Iterable[str]) -> tuple[Device, ...]:
    """The devices of all workers among these names of devices. Raises ConfigError, DeviceError.

    A name with a number (rpc://HOST:PORT/1) asks for all devices of its worker, too, and has to be one of them.
    """
    by_worker: dict[WorkerAddress, tuple[Device, ...]] = {}
    for name in names:
        if not name.startswith(SCHEME):
            continue
        address, number = read_address(name)
        if address not in by_worker:
            with WorkerClient(address) as client:
                by_worker[address] = client.devices()
        if number is not None and number >= len(by_worker[address]):
            there = ", ".join(device.name for device in by_worker[address])
            raise ConfigError(Option("devices"), f" names {name!r}, which the worker does not have; it has: {there}")
    return tuple(device for devices in by_worker.values() for device in devices)


def _connected(address: WorkerAddress) -> socket.socket:
    try:
        return socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS)
    except (OSError, UnicodeError) as error:  # a name may be none that can be asked for
        why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        raise DeviceError(
            f"no worker answers at {address}: {why}",
            advice=["start one there: ollama-engine worker --host ADDRESS --port PORT"],
        ) from None


def keep_alive(connection: socket.socket) -> None:
    """Have the system notice that the other machine is gone, where nothing is sent, too."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": SILENT_SECONDS // 3, "TCP_KEEPINTVL": SILENT_SECONDS // 6, "TCP_KEEPCNT": 4,
               "TCP_USER_TIMEOUT": SILENT_SECONDS * 1000}  # fmt: skip
    for name, value in options.items():
        if hasattr(socket, name):
            with contextlib.suppress(OSError):  # a system that knows the option and not for this kind of socket
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
