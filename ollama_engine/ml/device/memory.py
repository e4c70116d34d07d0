"""Memory reports: the bytes that an engine plans and takes on each device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ollama_engine.ml.device.placement_plan import PlacementPlan


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes that an engine takes on one device, by purpose."""

    device: str
    weights: int = 0
    """Weights copied to the device's memory."""
    mapped: int = 0
    """Weights read from the mapped file: page cache that the system can take back."""
    repacked: int = 0
    """Second copies of weights, in ggml's repacked layout."""
    cache: int = 0
    """Keys and values, and recurrent states."""
    states: int = 0
    """The part of `cache` that recurrent states take."""
    graph: int = 0
    """Intermediate results of the largest graph."""
    work: int = 0
    """Memory on the CPU beside the results: scratch memory of its kernels, and the masks."""

    @property
    def allocated(self) -> int:
        """Bytes of all but the mapped weights."""
        return self.weights + self.repacked + self.cache + self.graph + self.work

    @property
    def by_kind(self) -> dict[str, int]:
        """All bytes, as monitoring shows them: {"weights": .., "cache": .., "graph": ..}."""
        weights = self.weights + self.mapped + self.repacked
        return {"weights": weights, "cache": self.cache, "graph": self.graph + self.work}


@dataclass(frozen=True)
class MemoryReport:
    """Memory of an engine, by device and by layer."""

    devices: tuple[DeviceMemory, ...]
    layers: Mapping[str, int] = field(default_factory=dict)
    """Bytes of weights for each block ("blk.0" ...), and for "vision", "input" and "output"."""
    placement: PlacementPlan | None = None
    """The plan of which layer goes on which device; None in the report of a machine without a GPU that has loaded."""
    serving: Mapping[str, int] = field(default_factory=dict)
    """Most bytes that serving takes on top, by purpose, in host memory but for the graphs of long texts to embed."""

    @property
    def total(self) -> int:
        """Bytes on all devices, mapped weights included."""
        return sum(d.allocated + d.mapped for d in self.devices)

    def __str__(self) -> str:
        recurrent = any(d.states for d in self.devices)
        states = ("states",) if recurrent else ()
        rows: list[tuple[str, ...]] = [
            ("device", "weights", "mapped", "repacked", "cache", *states, "graph", "work", "MiB in all")
        ]
        for d in self.devices:
            stored = (d.cache - d.states, d.states) if recurrent else (d.cache,)
            numbers = (d.weights, d.mapped, d.repacked, *stored, d.graph, d.work, d.allocated + d.mapped)
            rows.append((d.device, *(f"{n / 2**20:.1f}" for n in numbers)))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
        if self.serving:
            parts = ", ".join(f"{purpose} {nbytes / 2**20:.1f}" for purpose, nbytes in self.serving.items())
            lines.append(f"while serving, MiB at most: {parts}")
        return "\n".join(lines)
