"""WeightPlan: which device holds each tensor of a file, which are read from the mapped file, which are repacked.

Pure, but for the question which types the CPU can repack.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.device.placement_plan import Placement
from ollama_engine.ml.gguf.gguf_file import IMAGE_PARTS, GGUFFile, TensorInfo
from ollama_engine.ml.gguf.next_tokens import next_token_tensors
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import ALIGNMENT, can_repack
from ollama_engine.ml.weights.kernel_choice import kernels_of
from ollama_engine.ml.weights.latent_maps import LatentMap, latent_maps

__all__ = [
    "OF_ALL_LAYERS",
    "OUTPUT",
    "TIED",
    "WeightPlan",
    "block_of_tensor",
    "has_experts",
    "is_expert",
    "is_output",
    "plan_weights",
]

log = logging.getLogger(__name__)

_BLOCK = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"blk\.\d+\.\w+_exps\.")
TIED = "token_embd.weight"
"""The output of a model that has no other."""
OUTPUT = "output.weight"
OF_ALL_LAYERS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""A few numbers that every layer reads, on whatever device."""
READ_BY_ROW_EVERYWHERE = frozenset({"f32", "f16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"})
"""Types of which rows are read by every backend of ggml for GPUs; a worker does not say what its device reads."""
_READ_ONLY_BY_ROW = ("position_embd.weight", "token_types.weight")


def block_of_tensor(name: str) -> int | None:
    """The number of the layer that a tensor belongs to."""
    block = _BLOCK.match(name)
    return int(block[1]) if block else None


def is_expert(name: str) -> bool:
    """Whether a tensor holds the experts of a layer: a matrix or a bias for each."""
    return _EXPERTS.match(name) is not None


def has_experts(info: TensorInfo) -> bool:
    """Whether a tensor has a matrix for each expert of a layer."""
    return len(info.shape) == 3 and is_expert(info.name)


def is_output(name: str) -> bool:
    """Whether a tensor lies where the output layer does: it computes before the first layer or behind the last."""
    return name.startswith(("output", "per_layer_model_proj", "per_layer_proj_norm", "altup_"))


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Which tensor of a file goes on which device."""

    infos: Mapping[str, TensorInfo]
    """Tensors to store, by name: the file's, and a copy of a tied output where that lies on another device."""
    cpu: int
    """Number of the CPU, which is the last device."""
    devices: Mapping[str, int]
    """Device number of each tensor, by name."""
    layers: tuple[int, ...]
    """Device number of each layer: where its keys and values belong."""
    mapped: Mapping[str, TensorInfo]
    """Tensors that the CPU reads from the mapped file."""
    cached: Mapping[str, TensorInfo]
    """Experts that the CPU reads when they are used (`ExpertCache`)."""
    expert_bytes: int
    """Bytes of them that are in memory at once."""
    made: Mapping[str, LatentMap]
    """Tensors that are made of others while they are read."""
    repacked: tuple[TensorInfo, ...]
    """Tensors of which the CPU gets a repacked copy."""

    def planned(self, names: Sequence[str]) -> dict[str, dict[str, int]]:
        """Bytes for the devices of these names: {"CPU": {"weights": .., "mapped": .., "repacked": ..}}."""
        plan = {name: {"weights": 0, "mapped": 0, "repacked": 0} for name in names}
        for info in self.infos.values():
            device = names[self.devices[info.name]]
            if info.name not in self.cached:
                plan[device]["mapped" if info.name in self.mapped else "weights"] += info.nbytes
        plan[names[self.cpu]]["weights"] += self.expert_bytes
        plan[names[self.cpu]]["repacked"] = sum(info.nbytes for info in self.repacked)
        return plan

    def device_of_layer(self, layer: int) -> int:
        """Number of the device that holds a layer; the CPU for one that has no tensors."""
        return self.layers[layer] if layer < len(self.layers) else self.cpu

    def by_layer(self) -> dict[str, int]:
        """Bytes of weights for each block, "vision", "input" and "output"."""
        layers: dict[str, int] = {}
        for info in self.infos.values():
            moved = info.name == TIED and self.devices[TIED] != self.cpu
            layer = "output" if moved else _layer_name(info.name)
            layers[layer] = layers.get(layer, 0) + info.nbytes
        return layers


def plan_weights(
    backend: Backend, gguf: GGUFFile, placement: Placement | None, *, mmap: bool, repack: bool = True,
    tied: bool = False, cpu: int | None = None, head: bool = False,
    expert_bytes: int | None = None,
) -> WeightPlan:  # fmt: skip
    """The plan for a placement; without one, all is on the CPU. A head for drafts is in it with `head` only.

    `expert_bytes`: most bytes of experts in memory at once. All other weights are copied, so experts cannot evict them.
    `tied`: see `Weights`. `backend` says what can be repacked; `cpu` is the CPU's number where that is not `backend`'s.
    Raises ModelFormatError for a tensor whose name is not UTF-8.
    """
    _check_names(gguf)
    cpu = len(backend.devices) - 1 if cpu is None else cpu
    unused = frozenset() if head else next_token_tensors(gguf.metadata, gguf.tensors)
    infos = {name: info for name, info in gguf.tensors.items() if name not in unused}
    made = latent_maps(gguf.metadata, infos)
    sources = {latent_map.source.name for latent_map in made.values()}
    infos = {name: info for name, info in infos.items() if name not in sources}
    infos |= {name: latent_map.info for name, latent_map in made.items()}
    n_layers = 1 + max((number for number in map(block_of_tensor, infos) if number is not None), default=-1)
    placement = placement or Placement((cpu,) * n_layers, (cpu,) * n_layers, cpu, cpu)
    embeds_there = False
    if tied and TIED in infos and OUTPUT not in infos and placement.output != cpu:
        embeds_there = _embeds_there(infos, placement)
        if not embeds_there:
            infos[OUTPUT] = infos[TIED]._replace(name=OUTPUT)
    devices = {name: _device_of(name, placement, cpu) for name in infos}
    if embeds_there:
        devices[TIED] = placement.output
    of_file = {name: info for name, info in infos.items() if name not in made}
    cached = {n: i for n, i in of_file.items() if has_experts(i) and devices[n] == cpu} if expert_bytes else {}
    mapped = _mapped(of_file, devices, cpu) if mmap and not cached else {}
    kept = min(expert_bytes or 0, sum(info.nbytes for info in cached.values()))
    once = {n: i for n, i in of_file.items() if n not in cached}
    repacked = tuple(_repacked(backend, once, devices, cpu)) if repack else ()
    return WeightPlan(infos, cpu, devices, placement.layers, mapped, cached, kept, made, repacked)


def _embeds_there(infos: Mapping[str, TensorInfo], placement: Placement) -> bool:
    """Whether the device of a tied output embeds the tokens, too: the first layer, which reads them, lies there.

    A step then sends tokens and not their embeddings. Those of images are put among them on the CPU.
    """
    first = placement.layers[0] if placement.layers else None
    images = any(name.startswith(IMAGE_PARTS) for name in infos)
    return first == placement.output and infos[TIED].dtype in READ_BY_ROW_EVERYWHERE and not images


def _device_of(name: str, placement: Placement, cpu: int) -> int:
    """Device of a tensor: those of layers by number, the output, a vision part, and all else on the CPU."""
    block = block_of_tensor(name)
    if block is not None:
        return (placement.experts if is_expert(name) else placement.layers)[block]
    if name.startswith(IMAGE_PARTS):
        return placement.vision
    return placement.output if is_output(name) else cpu


def _layer_name(name: str) -> str:
    block = block_of_tensor(name)
    if block is not None:
        return f"blk.{block}"
    if name.startswith(IMAGE_PARTS):
        return "vision"
    return "output" if is_output(name) else "input"


def _check_names(gguf: GGUFFile) -> None:
    """Raise ModelFormatError for a tensor whose name is not UTF-8; ggml could not find it by name."""
    for name in gguf.tensors:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ModelFormatError(f"the name of tensor {name!r} is not UTF-8; the file is damaged") from None


def _mapped(infos: Mapping[str, TensorInfo], devices: Mapping[str, int], cpu: int) -> dict[str, TensorInfo]:
    """Tensors that the CPU reads from the mapped file: all of its own, except those at unaligned offsets."""
    alone = all(device == cpu for device in devices.values())
    mine = {n: i for n, i in infos.items() if devices[n] == cpu and (alone or n not in OF_ALL_LAYERS)}
    odd = [n for n, i in mine.items() if i.offset % ALIGNMENT]
    if odd:
        log.info(
            "%d tensors do not start at multiples of %d bytes and are copied instead of mapped", len(odd), ALIGNMENT
        )
    return {n: i for n, i in mine.items() if not i.offset % ALIGNMENT}


def _repacked(
    backend: Backend, infos: Mapping[str, TensorInfo], devices: Mapping[str, int], cpu: int
) -> Iterable[TensorInfo]:
    tied = OUTPUT not in infos
    kernels = kernels_of(backend)
    candidates = [
        i
        for n, i in infos.items()
        if devices[n] == cpu and len(i.shape) in (2, 3) and not n.endswith(_READ_ONLY_BY_ROW)
        and not n.startswith(IMAGE_PARTS)  # an image has many rows
        and (tied or n != TIED) and kernels.wants_repacked(i.dtype, experts=len(i.shape) == 3)
    ]  # fmt: skip
    kinds = {(i.dtype, i.shape) for i in candidates}
    repackable = {kind for kind in kinds if can_repack(backend, *kind)}
    return (i for i in candidates if (i.dtype, i.shape) in repackable)
