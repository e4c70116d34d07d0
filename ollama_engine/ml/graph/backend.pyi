import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

from typing_extensions import Self, SupportsIndex

from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.weights.kernel_choice import KernelChoice
from ollama_engine.ml.workers.workers import Worker

_Choose = Callable[[tuple[Device, ...]], tuple[Device, ...]]

log: logging.Logger
DEFAULT_MAX_NODES: Final[int]
MAX_NODES_LIMIT: Final[int]
MAX_DEVICES: Final[int]
SCHEDULER_BYTES_PER_NODE: Final[int]

class Backend:
    def __init__(
        self,
        params: BackendParams,
        *,
        max_nodes: SupportsIndex = ...,
        choose: _Choose | None = None,
        kernels: KernelChoice | None = None,
    ) -> None: ...
    @property
    def params(self) -> BackendParams: ...
    @property
    def kernels(self) -> KernelChoice | None: ...
    @property
    def devices(self) -> tuple[Device, ...]: ...
    @property
    def workers(self) -> tuple[Worker, ...]: ...
    def check_devices(self) -> None: ...
    def give_up_devices(self) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def threads_in_use(self) -> int: ...
    @property
    def max_nodes(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def graph_bytes(self) -> dict[str, int]: ...
    def work_bytes(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
