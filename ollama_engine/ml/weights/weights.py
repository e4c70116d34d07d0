"""Weights: the tensors of a GGUF file, planned for each device, then mapped or read.

On the CPU, weights stay in the mapped file. A matrix gets a second, repacked copy (`Tensor.repacked`) where ggml can
repack its type and `kernel_choice` has no faster kernel for the original. Where memory is short there are no such
copies, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ollama_engine.closing import Closing
from ollama_engine.errors import ClosedError
from ollama_engine.ml.device.hostmem import available_bytes
from ollama_engine.ml.device.placement_plan import Placement
from ollama_engine.ml.gguf.gguf_file import GGUFFile, TensorInfo
from ollama_engine.ml.gguf.mapped_files import MappedFiles
from ollama_engine.ml.gguf.model_file import ModelFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.threads.expert_cache import ExpertCache
from ollama_engine.ml.weights.page_enlarger import PageEnlarger
from ollama_engine.ml.weights.weight_plan import OF_ALL_LAYERS, block_of_tensor, plan_weights

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""

_CHUNK = 64 << 20
_GROUP = 64 << 20


class Weights(Mapping[str, Tensor], Closing):
    """All tensors of a model by name.

    Construction plans and allocates nothing; `load` takes the memory and fills it, `repack` adds the repacked copies.
    Both raise NoMemoryError when a device is too small. Without a `placement` all is on the CPU.
    `tied`: the model computes its output with the embeddings of tokens where the file has no output; "output.weight" is
    a copy of them then, on the device of the output layer. `head`: with the blocks that predict tokens further ahead.
    `expert_bytes`: see `plan_weights`.
    """

    def __init__(
        self, backend: Backend, gguf: GGUFFile, placement: Placement | None = None, *, repack: bool = True,
        tied: bool = False, files: MappedFiles | None = None, head: bool = False,
        expert_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self.backend = backend
        self.gguf = gguf
        self.plan = plan_weights(
            backend, gguf, placement, mmap=backend.params.mmap, repack=repack, tied=tied, head=head,
            expert_bytes=expert_bytes,
        )  # fmt: skip
        """Which tensor goes on which device."""
        self._repacked = list(self.plan.repacked)
        self._tensors: dict[str, Tensor] = {}
        self._storages: list[Storage] = []
        self._mapped: list[tuple[Storage, list[TensorInfo]]] = []
        self.experts: ExpertCache | None = None
        """Those of `plan.cached`, once loaded."""
        self._loaded = False
        self._meter = _Meter(None, 0)
        self.files = MappedFiles() if files is None else files
        """The files that tensors are mapped from, with those of other weights that are given."""

    # -- commit --------------------------------------------------------------------------------------------------------

    def load(self, progress: Progress | None = None) -> None:
        """Map, allocate and read. Call `repack` later, when everything else that the model needs has its memory.

        `progress` is called with (bytes done, bytes in all), last by `repack` with both equal.
        """
        there = self.plan.mapped.keys() | self.plan.cached.keys()
        copied = [i for i in self.plan.infos.values() if i.name not in there]
        total = sum(i.nbytes for i in (*copied, *self.plan.mapped.values(), *self._repacked))
        self._meter = _Meter(progress, total)
        with self._open_files() as files:
            self._map(files, self._meter)
            if self.plan.cached:
                self._cache_experts(files)
            self._copy(copied, files, self._meter)
        self._loaded = True

    def declare(self) -> None:
        """Make tensors without taking memory, to plan with: mapped ones are not read yet, all else has no contents."""
        with self._open_files() as files:
            self._map(files, self._meter, touch=False)
        if rest := [info for info in self.plan.infos.values() if info.name not in self._tensors]:
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
        pages = PageEnlarger()
        for number, file in enumerate(files):
            infos = [i for i in self.plan.mapped.values() if i.file == number]
            if not infos:
                continue
            storage = self._storage(len(infos))
            for info in infos:
                self._tensors[info.name] = storage.add(info.name, info.dtype, info.shape)
            storage.map(file.mapping(), {info.name: info.offset for info in infos})
            file.watch(self.files)
            self._mapped.append((storage, infos))
            if touch and _touch(storage, infos, meter):
                pages.enlarge(storage, file, infos)

    def _cache_experts(self, files: list[ModelFile]) -> None:
        self.experts = cache = ExpertCache()
        for path, file in zip(self.gguf.files, files, strict=True):
            memory = cache.add_file(path)
            file.watch(self.files)
            infos = [i for i in self.plan.cached.values() if self.gguf.files[i.file] == path]
            if infos:
                storage = self._storage(len(infos))
                for info in infos:
                    self._tensors[info.name] = storage.add(info.name, info.dtype, info.shape)
                storage.map(memory, {info.name: info.offset for info in infos})
        for info in sorted(self.plan.cached.values(), key=_turn):
            block = block_of_tensor(info.name) or 0
            added = cache.add(block, info.shape[2], info.file, info.offset, info.nbytes)
            self._tensors[info.name].cached = added
        if self.plan.expert_bytes < (total := sum(info.nbytes for info in self.plan.cached.values())):
            cache.limit(self.plan.expert_bytes)  # else all fit, whole pages of each or not
        log.info("experts: %d of %d MiB are in memory at once; others are read when the router chooses them",
                 self.plan.expert_bytes >> 20, total >> 20)  # fmt: skip

    def touch(self) -> None:
        """Page in mapped tensors whose pages were given back, so that the next step does not wait for them."""
        for storage, infos in self._mapped:
            _touch(storage, infos, _Meter(None, 0))

    def _copy(self, infos: list[TensorInfo], files: list[ModelFile], meter: _Meter) -> None:
        places = {info.name: (self.plan.devices[info.name], info.name in OF_ALL_LAYERS) for info in infos}
        for device, of_all in sorted(set(places.values())):
            mine = [i for i in infos if places[i.name] == (device, of_all)]
            storage = self._storage(len(mine))
            for info in mine:
                self._tensors[info.name] = storage.add(info.name, info.dtype, info.shape)
            storage.allocate(device)
            if not of_all:  # which, as weights, would have the graph cut at each operation that reads them elsewhere
                storage.mark_weights()
            for info in mine:
                self._tensors[info.name].set_bytes(self._read(info, files[info.file]))
                meter.advance(info.nbytes)

    def _read(self, info: TensorInfo, file: ModelFile) -> NDArray[np.uint8]:
        made = self.plan.made.get(info.name)
        return file.read(info) if made is None else made.made(file.read(made.source))

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

    def planned(self) -> dict[str, dict[str, int]]:
        """Bytes by device name, {"CPU": {"weights": .., "mapped": .., "repacked": ..}}, of copies if they are made."""
        names = [device.name for device in self.backend.devices]
        plan = self.plan.planned(names)
        plan[names[-1]]["repacked"] = sum(info.nbytes for info in self._repacked)
        return plan

    # -- use -----------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Tensor:
        if not self._loaded:
            raise ClosedError("these weights are not loaded, or closed")
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def close(self) -> None:
        """Free the memory. Safe to call twice."""
        for storage in self._storages:
            storage.close()
        if self.experts is not None:
            self.experts.close()
        self.files.close()
        self._loaded = False
        self._storages = []
        self._mapped = []
        self._tensors = {}


def _turn(info: TensorInfo) -> tuple[int, bool, str]:
    """The order in which matrices of experts are computed: what leads back to the residual stream comes last."""
    return block_of_tensor(info.name) or 0, "down" in info.name, info.name


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


def _touch(storage: Storage, infos: list[TensorInfo], meter: _Meter) -> bool:
    """Page mapped tensors in now, where the system can and has the memory; otherwise steps do so page by page.

    Returns whether they are there.
    """
    fits = sum(info.nbytes for info in infos) < available_bytes()
    for info in infos:
        end = info.offset + info.nbytes
        for begin in range(info.offset, end, _CHUNK):
            fits = fits and storage.populate(begin, min(_CHUNK, end - begin))
        meter.advance(info.nbytes)
    return fits


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
