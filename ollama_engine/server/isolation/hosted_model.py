"""HostedModel: the model of a runner process, from nothing to loaded to closed."""

from __future__ import annotations

import asyncio
import enum
import os
from pathlib import Path
from typing import Any

from ollama_engine.engine import Engine
from ollama_engine.errors import ConfigError, LoadError, UnsupportedModelError
from ollama_engine.ml.device.memory import MemoryReport
from ollama_engine.server.isolation.codec import decode, encode
from ollama_engine.server.local_model import LocalModel
from ollama_engine.server.model_manager.facts import facts_of
from ollama_engine.server.served import ServedModel
from ollama_engine.store.stored_model import StoredModel

__all__ = ["HostedModel", "Operation", "Status"]

FLASH_ATTENTION = {-1: "auto", 0: "off", 1: "on"}


class Status(enum.IntEnum):
    """The status in /health's body, in Ollama's numbers."""

    READY = 0
    LAUNCHED = 2
    LOADING = 3
    ERROR = 5


class Operation(enum.IntEnum):
    """The operations of /load, in Ollama's numbers."""

    FIT = 0
    ALLOC = 1
    COMMIT = 2
    CLOSE = 3


class HostedModel:
    """One model file, and the engine that has it once it is loaded."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._model: LocalModel | None = None
        self._loading = asyncio.Lock()
        self._status = Status.LAUNCHED
        self.progress = 0.0

    @property
    def status(self) -> Status:
        """The status now; ERROR where the engine has closed itself, too."""
        closed = self._status is Status.READY and self._model is not None and self._model.engine.closed
        return Status.ERROR if closed else self._status

    def model(self) -> ServedModel:
        """The loaded model. Raises ConfigError before there is one."""
        if self._model is None:
            raise ConfigError("no model is loaded yet", advice=["send /load with Operation 1 first"])
        return self._model

    def engine(self) -> Engine:
        """The engine that has it. Raises as `model` does."""
        self.model()
        assert self._model is not None
        return self._model.engine

    def devices(self) -> list[dict[str, Any]]:
        """The devices of this machine, in Ollama's fields."""
        return [
            {
                "id": device.id or str(device.index), "backend": device.library, "name": device.name,
                "description": device.description, "total_memory": device.memory_total,
                "free_memory": device.memory_free,
            }
            for device in Engine.devices()
        ]  # fmt: skip

    async def operate(self, body: dict[str, Any]) -> dict[str, Any]:
        """Fit, load, confirm or close. Raises as `Engine` does."""
        number = body.get("Operation")
        if number not in list(Operation):
            raise ConfigError(f"Operation is 0 (fit), 1 (alloc), 2 (commit) or 3 (close), got {number!r:.40}")
        if number == Operation.CLOSE:
            await self.close()
            return {"Success": True}
        async with self._loading:
            if number == Operation.FIT:
                options = engine_options(body)
                del options["max_queue"]
                return _answer(await asyncio.to_thread(Engine.plan_memory, self._path, **options))
            if number == Operation.ALLOC:
                await self._load(body)
            elif self._model is None:
                raise ConfigError("there is nothing to commit", advice=["send Operation 1 first"])
        assert self._model is not None
        return {**_answer(self._model.engine.memory), "Facts": encode(self._model.facts)}

    async def _load(self, body: dict[str, Any]) -> None:
        if self._model is not None:
            raise LoadError("model already loaded")
        self._status, self.progress = Status.LOADING, 0.0
        try:
            self._model = await asyncio.to_thread(self._loaded, engine_options(body))
        except BaseException:
            self._status = Status.ERROR
            raise
        self._status, self.progress = Status.READY, 1.0

    def _loaded(self, options: dict[str, Any]) -> LocalModel:
        engine = Engine(options.pop("model", self._path), progress=self._advance, **options)
        path = Path(self._path)
        # Its name, template and messages stay with the server: here it is a file.
        stored = StoredModel(path.name, "0" * 64, os.path.getsize(path), 0.0, path)
        return LocalModel(engine, stored, facts_of(engine))

    def _advance(self, done: int, total: int) -> None:
        self.progress = done / max(1, total)

    async def close(self) -> None:
        """Unload the model; its requests end with ClosedError."""
        model, self._model = self._model, None
        if model is not None:
            await asyncio.to_thread(model.engine.close)
        self._status, self.progress = Status.LAUNCHED, 0.0


def engine_options(body: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of Engine in a /load request: Ollama's fields, and "MaxQueue", "Devices", "NumGPU" (layers) and
    "MeasureKernels"; or those arguments themselves, encoded, in "EngineOptions".
    """
    if body.get("EngineOptions") is not None:
        given: dict[str, Any] = decode(body["EngineOptions"])
        return given
    if body.get("LoraPath"):
        raise UnsupportedModelError("loras are not yet implemented")
    parallel = body.get("Parallel") or 1
    options: dict[str, Any] = {
        "num_ctx": (body.get("KvSize") or 0) // parallel or None,
        "parallel": parallel,
        "max_queue": body.get("MaxQueue", 512),
        "threads": body.get("NumThreads") or None,
        "devices": body.get("Devices") or None,
        "kv_cache_type": body.get("KvCacheType") or "f16",
        "flash_attention": FLASH_ATTENTION.get(body.get("FlashAttention", -1), "auto"),
        "mmap": body.get("UseMmap", True),
        "measure_kernels": body.get("MeasureKernels", True),
        "draft": body.get("Draft") or "auto",
        "prefix_store": body.get("PrefixStore") or "off",
        "prefix_store_bytes": body.get("PrefixStoreBytes"),
        "expert_cache_bytes": body.get("ExpertCacheBytes"),
        "draft_model": body.get("DraftModel") or None,
        "projector": body.get("ProjectorPath") or None,
    }
    if body.get("BatchSize"):
        options["batch_size"] = body["BatchSize"]
    if body.get("NumGPU") is not None:
        options["gpu_layers"] = body["NumGPU"]
    elif body.get("GPULayers") is not None:
        options["gpu_layers"] = sum(len(device.get("Layers", ())) for device in body["GPULayers"])
    if body.get("MainGPU") is not None:
        options["main_gpu"] = body["MainGPU"]
    if body.get("TensorSplit"):
        options["tensor_split"] = body["TensorSplit"]
    return options


def _answer(report: MemoryReport) -> dict[str, Any]:
    """A memory report in Ollama's fields, bytes for each device, and whole under "Report"."""
    rows = [
        {"Name": device.device, "Weights": device.weights + device.mapped + device.repacked, "Cache": device.cache,
         "Graph": device.graph + device.work}
        for device in report.devices
    ]  # fmt: skip
    memory = {"InputWeights": report.layers.get("input", 0), "CPU": rows[-1], "GPUs": rows[:-1]}
    return {"Success": True, "Memory": memory, "Report": encode(report)}
