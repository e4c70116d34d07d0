"""Fits a model to the devices: from its sizes, their free memory and the caller's options to a placement."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ollama_engine.config import EngineConfig
from ollama_engine.errors import NoMemoryError, Option
from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.device.memory import DeviceMemory, MemoryReport
from ollama_engine.ml.device.placement_plan import Placement, PlacementOptions, PlacementPlan, PlannedDevice, Room
from ollama_engine.ml.device.placement_planner import plan_placement
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.ops.nn import supports_flash_attention
from ollama_engine.models import Model
from ollama_engine.runner.load.sizes import declared, model_sizes, tower_memory
from ollama_engine.size_texts import size

__all__ = ["DeviceChoice", "fit", "refuse_overfull"]

log = logging.getLogger(__name__)

RESERVED = 32
"""One of this many parts of a GPU's memory stays free: for its driver, and for what its kernels take while they run."""

UNKNOWN = 1
"""Drivers that cannot tell how much memory a GPU has say 0 or 1; then it has enough."""
UNBOUNDED = 1 << 60


class DeviceChoice:
    """Chooses the devices of a `Backend`: those that the plan puts something on, and the CPU.

    `plan` and `placement` are there once it was called; None where there is no GPU, and so nothing to plan.
    """

    def __init__(self, gguf: GGUFFile, config: EngineConfig, *, tight: int = 0) -> None:
        self._gguf = gguf
        self._config = config
        self._tight = tight
        self.plan: PlacementPlan | None = None

    def __call__(self, devices: tuple[Device, ...]) -> tuple[Device, ...]:
        """Raises NoMemoryError where the caller asks for more on a device than it has, and as `fit`."""
        *gpus, cpu = devices
        if not gpus:
            return devices
        self.plan = fit(self._gguf, self._config, gpus, tight=self._tight)
        refuse_overfull(self.plan, mmap=self._config.mmap)
        log.info("%d layers on GPUs, experts of %d layers on the CPU: %s", self.plan.gpu_layers, self.plan.cpu_experts,
                 ", ".join(f"{d.name} {d.taken >> 20} MiB" for d in self.plan.devices))  # fmt: skip
        return (*(gpus[number] for number in self.plan.order), cpu)

    @property
    def placement(self) -> Placement | None:
        """Where weights go, for `Weights`."""
        return None if self.plan is None else self.plan.placement()

    @property
    def can_shrink(self) -> bool:
        """Whether another plan could put less on GPUs."""
        return self._config.gpu_layers is None and self.plan is not None and bool(self.plan.order)


def fit(gguf: GGUFFile, config: EngineConfig, gpus: Sequence[Device], *, tight: int = 0) -> PlacementPlan:
    """The plan for these GPUs. `tight`: how often loading has found less memory than planned; more stays free then.

    Raises ConfigError where the options name GPUs that do not exist, and what reading the file raises.
    """
    with declared(gguf) as (model, backend):
        if model is not None:
            config = config.for_model(model.context_length)
        flash_attention = config.flash_attention != "off" and _have_flash_attention(gpus, model, config)
        image = tower_memory(model, backend, config)
        sizes = model_sizes(gguf, model, config, image, flash_attention=flash_attention)
    if config.cpu_experts and not any(layer.experts for layer in sizes.layers):
        log.warning("cpu_experts=%d has no effect: the model has no experts", config.cpu_experts)
    split = None if config.tensor_split is None else tuple(config.tensor_split)
    options = PlacementOptions(gpu_layers=config.gpu_layers, main_gpu=config.main_gpu, tensor_split=split,
                               cpu_experts=config.cpu_experts)  # fmt: skip
    return plan_placement(sizes, [_room(gpu, tight) for gpu in gpus], options)


def _room(gpu: Device, tight: int) -> Room:
    if gpu.handle and gpu.memory_total <= UNKNOWN:  # a planned GPU has what the caller says
        return Room(gpu.name, UNBOUNDED)
    return Room(gpu.name, gpu.memory_free, gpu.memory_total // RESERVED + gpu.memory_free * tight // 8)


def _have_flash_attention(gpus: Sequence[Device], model: Model | None, config: EngineConfig) -> bool:
    """Whether all these GPUs have a one-pass kernel for this model's heads; scores take memory otherwise."""
    layers = () if model is None else model.cache_layers
    heads = {(layer.key_dim, layer.value_dim) for layer in layers if layer.attends}
    return all(
        supports_flash_attention(gpu, *head, config.kv_cache_type) for gpu in gpus if gpu.handle for head in heads
    )


def refuse_overfull(plan: PlacementPlan, *, mmap: bool) -> None:
    """Raise NoMemoryError where the caller asks for more on a device than it has, with what was planned for each."""
    for device in plan.overfull:
        assert device.free is not None, "only GPUs are bounded"
        raise NoMemoryError(
            f"{_held(device)} on {device.name} take {size(device.taken)} ({size(device.weights)} of weights, "
            f"{size(device.cache)} of keys and values, up to {size(device.graph)} for graphs), of which "
            f"{size(device.free)} are free",
            advice=[("lower ", Option("gpu_layers")), ("leave out ", Option("gpu_layers"), ", to use what fits")],
            report=_planned(plan, mmap),
        )


def _planned(plan: PlacementPlan, mmap: bool) -> MemoryReport:
    """The planned memory of each device; the CPU comes last, and reads its weights from the file with `mmap`."""
    devices = [
        DeviceMemory(device=device.name, cache=device.cache, graph=device.graph,
                     **{"mapped" if mmap and device.free is None else "weights": device.weights})
        for device in plan.devices
    ]  # fmt: skip
    return MemoryReport(tuple(devices), {}, plan)


def _held(device: PlannedDevice) -> str:
    parts = [f"{len(device.layers)} layers"] if device.layers else []
    return " and ".join([*parts, *(["the output layer"] if device.output else [])])
