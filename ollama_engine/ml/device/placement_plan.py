"""PlacementPlan: which layer goes on which device; and the sizes from which `placement_planner` makes it.

A model is a chain: its layers, then the output. GPUs hold the end of the chain, each a run of it, and the CPU holds
what is left. A layer's keys and values lie with it. The experts of a mixture are large and few of them are read for a
token. So they are the first to stay on the CPU, from the first layer on; the rest of their layer is on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LayerSizes", "ModelSizes", "Placement", "PlacementOptions", "PlacementPlan", "PlannedDevice", "Room"]


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Bytes of one layer: weights that are no experts, experts, keys and values."""

    weights: int
    experts: int = 0
    cache: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """Bytes of a model's parts."""

    layers: tuple[LayerSizes, ...]
    output: int = 0
    """Weights of the output layer."""
    tied: bool = False
    """Whether the file has these once, as embeddings of tokens: a GPU gets a copy."""
    vision: int = 0
    input: int = 0
    """Weights that are always on the CPU: embeddings of tokens."""
    graph: int = 0
    """Results of the largest graph, on each device that holds a layer."""
    output_graph: int = 0
    """Results beside them, where the output is."""
    vision_graph: int = 0
    """Results beside them, where the vision tower is."""
    offload: int = 0
    """Room of the first GPU for weights of the CPU, which ggml copies there for long prompts."""


@dataclass(frozen=True, slots=True)
class Room:
    """A GPU's free memory in bytes, of which plans leave `reserve` free, unless the caller demands layers there."""

    name: str
    free: int
    reserve: int = 0

    @property
    def usable(self) -> int:
        """Bytes that a plan may fill."""
        return max(0, self.free - self.reserve)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """The caller's options; None leaves the choice to the plan. See `EngineConfig`."""

    gpu_layers: int | None = None
    main_gpu: int | None = None
    tensor_split: Sequence[float] | None = None
    cpu_experts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """A plan's bytes on one device."""

    name: str
    free: int | None
    """Free memory before; None for the CPU, which a plan does not bound."""
    reserve: int
    weights: int
    cache: int
    graph: int
    layers: tuple[int, ...]
    """Numbers of the layers."""
    output: bool
    vision: bool

    @property
    def taken(self) -> int:
        """Bytes of all parts, without the reserve."""
        return self.weights + self.cache + self.graph

    @property
    def usable(self) -> int:
        """Bytes that a plan of its own would fill."""
        return max(0, (self.free or 0) - self.reserve)

    @property
    def overfull(self) -> int:
        """Bytes that the plan lacks here; 0 where all fits."""
        return 0 if self.free is None else max(0, self.taken - self.free)


@dataclass(frozen=True, slots=True)
class Placement:
    """Numbers of a backend's devices, of which the CPU is the last, for the parts of a model."""

    layers: tuple[int, ...]
    experts: tuple[int, ...]
    output: int
    vision: int


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """Device numbers of a model's parts; the CPU's number is the last, behind all GPUs."""

    layers: tuple[int, ...]
    experts: tuple[int, ...]
    """Device number of each layer's experts; that of its other weights where it has none."""
    output: int
    vision: int
    devices: tuple[PlannedDevice, ...]
    """GPUs as they were given, then the CPU."""
    order: tuple[int, ...] = ()
    """Numbers of the GPUs that the plan uses, in the order in which a backend has them."""

    @property
    def cpu(self) -> int:
        """Number of the CPU."""
        return len(self.devices) - 1

    @property
    def cpu_experts(self) -> int:
        """How many layers have experts on the CPU and are on a GPU otherwise."""
        return sum(layer != experts for layer, experts in zip(self.layers, self.experts, strict=True))

    @property
    def gpu_layers(self) -> int:
        """How many layers are on GPUs, the output layer counted."""
        return sum(number != self.cpu for number in (*self.layers, self.output))

    @property
    def overfull(self) -> tuple[PlannedDevice, ...]:
        """Devices with too little memory for what the caller asked for. Empty where the plan decided."""
        return tuple(device for device in self.devices if device.overfull)

    def placement(self) -> Placement:
        """The same for a backend that has the GPUs of `order`, and the CPU."""
        numbers = {gpu: number for number, gpu in enumerate((*self.order, self.cpu))}
        return Placement(
            tuple(numbers[gpu] for gpu in self.layers),
            tuple(numbers[gpu] for gpu in self.experts),
            numbers[self.output],
            numbers[self.vision],
        )
