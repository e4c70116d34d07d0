import os
from collections.abc import Iterable
from typing import Final

from typing_extensions import Buffer

from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.device.worker_address import WorkerAddress

PATIENCE_SECONDS: Final[float]
QUIET_SECONDS: Final[float]

class Worker:
    def __init__(self, address: WorkerAddress, *, patience: float | None = ..., quiet: float | None = ...) -> None: ...
    @property
    def address(self) -> WorkerAddress: ...
    @property
    def devices(self) -> tuple[Device, ...]: ...
    @property
    def lost(self) -> bool: ...
    def memory(self) -> list[tuple[int, int]]: ...
    def counts(self) -> dict[str, int]: ...
    def give_up(self) -> None: ...
    def close(self) -> None: ...

def weights_hash(data: Buffer) -> int: ...
def serve_devices(
    host: str,
    port: int,
    devices: Iterable[Device],
    threads: int,
    cache: str | os.PathLike[str] | None = None,
    memory: int | None = None,
    connections: int | None = None,
) -> None: ...
