"""Device: a description of one compute device in plain values, without pointers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]


@dataclass(frozen=True)
class Device:
    """One device that tensors can live on and graphs can run on."""

    name: str
    """ggml's name, such as "CPU" or "CUDA0"."""
    kind: DeviceKind
    library: str
    """The backend that drives it, such as "CPU" or "CUDA"."""
    index: int
    """Number of this device among those of the same library: CUDA 0, CUDA 1 ..."""
    description: str
    memory_total: int
    """Memory of the device in bytes."""
    memory_free: int
    """Free memory in bytes. For the CPU ggml often reports the total here."""
    id: str | None = None
    """PCI address where known."""
    features: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Instruction sets and build options of its backend, as the variant that was loaded reports them."""
    handle: int = field(default=0, repr=False, compare=False)

    @property
    def feature_text(self) -> str:
        """The features by name, with their value where it is not "1"; "none" where there are none."""
        found = (name if value == "1" else f"{name}={value}" for name, value in self.features.items())
        return " ".join(found) or "none"


def system_line(devices: Iterable[Device], threads: int | None = None) -> str:
    """Devices and the features of those that this machine has, in one line: what results and speed depend on."""
    parts = []
    for device in devices:
        # A worker's machine does not tell the features of its devices.
        features = "" if device.library == "RPC" else f", features {device.feature_text}"
        parts.append(f"{device.name} ({device.description}{features})")
    return "; ".join([*parts, *([] if threads is None else [f"{threads} threads"])])


def number_by_library(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The same devices, each with its number among those that the same library drives."""
    seen: Counter[str] = Counter()
    numbered = []
    for device in devices:
        numbered.append(replace(device, index=seen[device.library]))
        seen[device.library] += 1
    return tuple(numbered)
