"""Weights: the tensors of a GGUF file, planned for each device, then mapped or read.

On the CPU, weights stay in the mapped file. A matrix gets a second, repacked copy (`Tensor.repacked`) where ggml can
repack its type and `kernel_choice` has no faster kernel for the original. Where memory is short there are no such
copies, and the log says so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from ollama_engine.errors import ClosedError, ModelFormatError
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.gguf import IMAGE_PARTS, GGUFFile, TensorInfo
from ollama_engine.ml.hostmem import available_bytes
from ollama_engine.ml.kernel_choice import wants_repacked
from ollama_engine.ml.mapped_files import MappedFiles
from ollama_engine.ml.model_file import ModelFile
from ollama_engine.ml.placement import assign_layers, place_vision
from ollama_engine.ml.storage import ALIGNMENT, Storage, can_repack
from ollama_engine.ml.tensor import Tensor

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""

_BLOCK = re.compile(r"blk\.(\d+)\.")
TIED = "token_embd.weight"
"""The output of a model that has no other."""
_OF_ALL_LAYERS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""A few numbers that every layer reads, on whatever device."""
_READ_ONLY_BY_ROW = ("position_embd.weight", "token_types.weight")
_CHUNK = 64 << 20
_GROUP = 64 << 20


class Weights(Mapping[str, Tensor]):
    """All tensors of a model by name.

    Construction plans and allocates nothing; `load` takes the memory and fills it, `repack` adds the repacked copies.
    Both raise NoMemoryError when a device is too small. `tied`: the model computes its output with the embeddings of
    tokens where the file has no output; then "output.weight" is a copy of them, on the device of the output layer.
    """

    def __init__(self, backend: Backend, gguf: GGUFFile, *, repack: bool = True, tied: bool = False) -> None:
        _check_names(gguf)
        self.backend = backend
        self.gguf = gguf
        self._tensors: dict[str, Tensor] = {}
        self._storages: list[Storage] = []
        self._loaded = False
        self._infos = _with_tied_output(gguf) if tied else dict(gguf.tensors)
        """What is stored, by its name here."""
        self._devices = _plan_devices(backend, self._infos)
        if "output.weight" not in gguf.tensors and self._devices.get(TIED) == self._devices.get("output.weight"):
            self._infos.pop("output.weight", None)  # both are on one device, and no copy is needed
        self._mapped = _plan_mapping(backend, self._infos, self._devices)
        self._repacked = _plan_repacking(backend, self._infos, self._devices) if repack else []
        self._meter = _Meter(None, 0)
        self.files = MappedFiles()
        """Those that tensors are mapped from."""

    # -- plan ----------------------------------------------------------------------------------------------------------

    def planned(self) -> dict[str, dict[str, int]]:
        """Bytes by device name: {"CPU": {"weights": .., "mapped": .., "repacked": ..}}."""
        plan = {d.name: {"weights": 0, "mapped": 0, "repacked": 0} for d in self.backend.devices}
        for info in self._infos.values():
            device = self.backend.devices[self._devices[info.name]].name
            plan[device]["mapped" if info.name in self._mapped else "weights"] += info.nbytes
        plan[self.backend.devices[-1].name]["repacked"] = sum(info.nbytes for info in self._repacked)
        return plan

    def by_layer(self) -> dict[str, int]:
        """Bytes of weights for each block, "vision", "input" and "output"."""
        layers: dict[str, int] = {}
        for info in self._infos.values():
            layers[_layer_name(info.name)] = layers.get(_layer_name(info.name), 0) + info.nbytes
        return layers

    # -- commit --------------------------------------------------------------------------------------------------------

    def load(self, progress: Progress | None = None) -> None:
        """Map, allocate and read. Call `repack` later, when everything else that the model needs has its memory.

        `progress` is called with (bytes done, bytes in all), last by `repack` with both equal.
        """
        copied = [i for i in self._infos.values() if i.name not in self._mapped]
        total = sum(i.nbytes for i in (*self._infos.values(), *self._repacked))
        self._meter = _Meter(progress, total)
        with self._open_files() as files:
            self._map(files, self._meter)
            self._copy(copied, files, self._meter)
        self._loaded = True

    def declare(self) -> None:
        """Make tensors without taking memory, to plan with: mapped ones are not read yet, all else has no contents."""
        with self._open_files() as files:
            self._map(files, self._meter, touch=False)
        if rest := [info for info in self._infos.values() if info.name not in self._tensors]:
            storage = self._storage(len(rest))
            self._tensors |= {info.name: storage.add(info.name, info.dtype, info.shape) for info in rest}
        self._loaded = True

    def repack(self) -> None:
        """Make the repacked copies, unless they take more than half of the memory that is left."""
        needed = sum(info.nbytes for info in self._repacked)
        if needed > available_bytes() // 2:
            log.warning("%d MiB for repacked copies of the weights would take more than half of the %d MiB available; "
                        "decoding goes without them", needed >> 20, available_bytes() >> 20)  # fmt: skip
            self._repacked = []
        with self._open_files() as files:
            self._repack(files, self._meter)
        self._meter.finish()

    @contextmanager
    def _open_files(self) -> Iterator[list[ModelFile]]:
        """Open the model's files. On an error, free what was loaded."""
        files = [ModelFile(path) for path in self.gguf.files]
        try:
            yield files
        except BaseException:
            self.close()
            raise
        finally:
            for file in files:
                file.close()

    def _storage(self, capacity: int) -> Storage:
        storage = Storage(self.backend, capacity)
        self._storages.append(storage)
        return storage

    def _map(self, files: list[ModelFile], meter: _Meter, *, touch: bool = True) -> None:
        for number, file in enumerate(files):
            infos = [i for i in self._mapped.values() if i.file == number]
            if not infos:
                continue
            storage = self._storage(len(infos))
            for info in infos:
                self._tensors[info.name] = storage.add(info.name, info.dtype, info.shape)
            storage.map(file.mapping(), {info.name: info.offset for info in infos})
            file.watch(self.files)
            fits = touch and sum(info.nbytes for info in infos) < available_bytes()
            for info in infos:
                if fits:
                    _touch(storage, info)
                meter.advance(info.nbytes)

    def _copy(self, infos: list[TensorInfo], files: list[ModelFile], meter: _Meter) -> None:
        places = {info.name: (self._devices[info.name], info.name in _OF_ALL_LAYERS) for info in infos}
        for device, of_all in sorted(set(places.values())):
            mine = [i for i in infos if places[i.name] == (device, of_all)]
            storage = self._storage(len(mine))
            for info in mine:
                self._tensors[info.name] = storage.add(info.name, info.dtype, info.shape)
            storage.allocate(device)
            if not of_all:  # which, as weights, would have the graph cut at each operation that reads them elsewhere
                storage.mark_weights()
            for info in mine:
                self._tensors[info.name].set_bytes(files[info.file].read(info))
                meter.advance(info.nbytes)

    def _repack(self, files: list[ModelFile], meter: _Meter) -> None:
        if not self._repacked:
            return
        storage = self._storage(len(self._repacked))
        for info in self._repacked:
            self._tensors[info.name].repacked = storage.add(info.name, info.dtype, info.shape)
        storage.allocate_repacked()
        for group in _groups(self._repacked):
            storage.fill({info.name: files[info.file].read(info) for info in group})
            for info in group:
                meter.advance(info.nbytes)

    # -- use -----------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        if not self._loaded:
            raise ClosedError("these weights are not loaded, or closed")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def device_of_layer(self, layer: int) -> int:
        """Number of the device that holds block `layer`: where its cache belongs."""
        return next(
            (d for n, d in self._devices.items() if n.startswith(f"blk.{layer}.")), len(self.backend.devices) - 1
        )

    def close(self) -> None:
        """Free the memory. Safe to call twice."""
        for storage in self._storages:
            storage.close()
        self.files.close()
        self._loaded = False
        self._storages = []
        self._tensors = {}

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _layer_name(name: str) -> str:
    block = _BLOCK.match(name)
    if block:
        return f"blk.{block[1]}"
    if name.startswith(IMAGE_PARTS):
        return "vision"
    return "output" if name.startswith("output") else "input"


def _check_names(gguf: GGUFFile) -> None:
    """Raise ModelFormatError for a tensor whose name is not UTF-8; ggml could not find it by name."""
    for name in gguf.tensors:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ModelFormatError(f"the name of tensor {name!r} is not UTF-8; the file is damaged") from None


def _with_tied_output(gguf: GGUFFile) -> dict[str, TensorInfo]:
    """The tensors of the file, and the embeddings of tokens once more as the output, where it has none."""
    infos = dict(gguf.tensors)
    if TIED in infos and "output.weight" not in infos:
        infos["output.weight"] = infos[TIED]._replace(name="output.weight")
    return infos


def _plan_devices(backend: Backend, infos: Mapping[str, TensorInfo]) -> dict[str, int]:
    """Device number of each tensor: blocks by layer, the output with the last, a vision part where there is room, and
    all else on the CPU.
    """
    blocks = [int(m[1]) for m in map(_BLOCK.match, infos) if m]
    n_layers = max(blocks, default=-1) + 1
    layers = assign_layers(backend.devices, n_layers, backend.params)
    cpu = len(backend.devices) - 1
    plan = {}
    for name in infos:
        block = _BLOCK.match(name)
        if block:
            plan[name] = layers[int(block[1])]
        else:
            plan[name] = layers[n_layers] if name.startswith("output") else cpu
    vision = [name for name in infos if name.startswith(IMAGE_PARTS)]
    if vision:
        loads = [0] * len(backend.devices)
        for name, device in plan.items():
            loads[device] += infos[name].nbytes
        device = place_vision(backend.devices, loads, sum(infos[name].nbytes for name in vision))
        plan |= dict.fromkeys(vision, device)
    return plan


def _plan_mapping(
    backend: Backend, infos: Mapping[str, TensorInfo], devices: Mapping[str, int]
) -> dict[str, TensorInfo]:
    """Tensors that the CPU reads from the mapped file: all of its own, except those at unaligned offsets."""
    if not backend.params.mmap:
        return {}
    cpu = len(backend.devices) - 1
    alone = all(device == cpu for device in devices.values())
    mine = {n: i for n, i in infos.items() if devices[n] == cpu and (alone or n not in _OF_ALL_LAYERS)}
    odd = [n for n, i in mine.items() if i.offset % ALIGNMENT]
    if odd:
        log.info(
            "%d tensors do not start at multiples of %d bytes and are copied instead of mapped", len(odd), ALIGNMENT
        )
    return {n: i for n, i in mine.items() if not i.offset % ALIGNMENT}


def _plan_repacking(
    backend: Backend, infos: Mapping[str, TensorInfo], devices: Mapping[str, int]
) -> list[TensorInfo]:
    cpu = len(backend.devices) - 1
    tied = "output.weight" not in infos
    candidates = [
        i
        for n, i in infos.items()
        if devices[n] == cpu and len(i.shape) in (2, 3) and not n.endswith(_READ_ONLY_BY_ROW)
        and not n.startswith(IMAGE_PARTS)  # an image has many rows
        and (tied or n != TIED) and wants_repacked(i.dtype, experts=len(i.shape) == 3)
    ]  # fmt: skip
    kinds = {(i.dtype, i.shape) for i in candidates}
    repackable = {kind for kind in kinds if can_repack(backend, *kind)}
    return [i for i in candidates if (i.dtype, i.shape) in repackable]


def _groups(infos: list[TensorInfo]) -> Iterator[list[TensorInfo]]:
    """Groups of tensors to repack at once: work for all threads, yet short enough for Ctrl-C between two groups."""
    group: list[TensorInfo] = []
    for info in infos:
        group.append(info)
        if sum(member.nbytes for member in group) >= _GROUP:
            yield group
            group = []
    if group:
        yield group


def _touch(storage: Storage, info: TensorInfo) -> None:
    """Page a mapped tensor in now, where the system can; otherwise the first step does so page by page."""
    end = info.offset + info.nbytes
    for begin in range(info.offset, end, _CHUNK):
        if not storage.populate(begin, min(_CHUNK, end - begin)):
            return


class _Meter:
    """Reports progress, at most once for each percent."""

    def __init__(self, report: Progress | None, total: int) -> None:
        self._report = report
        self._total = total
        self._done = 0
        self._shown = -1

    def advance(self, nbytes: int) -> None:
        self._done += nbytes
        percent = self._done * 100 // max(1, self._total)
        if self._report is not None and percent > self._shown:
            self._shown = percent
            self._report(self._done, self._total)

    def finish(self) -> None:
        if self._report is not None and self._shown < 100:
            self._report(self._total, self._total)
