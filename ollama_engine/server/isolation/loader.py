"""ProcessLoader: each model in a process of its own, so that one that crashes takes nothing with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ollama_engine.async_tasks import cancel_and_wait, in_thread_of_its_own
from ollama_engine.server.isolation.codec import decode, encode
from ollama_engine.server.isolation.hosted_model import FLASH_ATTENTION, Operation, Status
from ollama_engine.server.isolation.model_process import ModelProcess
from ollama_engine.server.isolation.remote_model import RemoteModel, request
from ollama_engine.server.model_manager.facts import with_template
from ollama_engine.server.model_manager.loader import (
    LOOK_SECONDS,
    SLEEP_OPTIONS,
    LoadedEngine,
    LoadProgress,
    PlanningLoader,
)

if TYPE_CHECKING:
    from ollama_engine.server.model_manager.runner_options import RunnerOptions
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["ProcessLoader", "watched"]

PROGRESS_SECONDS = 0.05
"""How often a process is asked for the progress of its load."""

PARTS = 1000
"""Parts of a load that a process tells apart."""


class ProcessLoader(PlanningLoader):
    """Loads models in child processes."""

    async def load(self, stored: StoredModel, options: RunnerOptions, progress: LoadProgress) -> LoadedEngine:
        work = partial(self.load_options, stored, options)
        body = load_request(stored, await in_thread_of_its_own(work, f"reads {stored.name}"))
        process = ModelProcess(stored.model_path, stored.name)
        try:
            await process.started()
            answer = await watched(process, body, progress)
            # In a thread: a Modelfile's template is compiled.
            facts = await asyncio.to_thread(with_template, decode(answer["Facts"]), stored.template)
            model = await asyncio.to_thread(RemoteModel, process, stored, facts)
        except BaseException:
            process.kill()
            await process.close()
            raise
        ended = (lambda: _over(process)) if self._settings.devices else process.ended
        return LoadedEngine(
            model, decode(answer["Report"]), process.close, partial(_engine_call, process, "sleep", SLEEP_OPTIONS),
            partial(_engine_call, process, "wake_up", {}), process.over, ended,
        )  # fmt: skip


async def _engine_call(process: ModelProcess, method: str, options: Mapping[str, Any]) -> None:
    """Call a method of a process's engine, and raise what it raises."""
    await request(process, "/engine/method", {"method": method, "args": [], "kwargs": encode(dict(options))})


async def _over(process: ModelProcess) -> None:
    """Wait until a process, or the engine in it, has ended, as that does when a worker is gone."""
    while not process.over():
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(process.ended(), LOOK_SECONDS)
        health = await _health(process)
        process.engine_closed |= health.get("status") == Status.ERROR


async def watched(process: ModelProcess, body: dict[str, Any], progress: LoadProgress) -> Any:
    """The answer of /load; `progress` is told meanwhile, and may end it by raising."""
    loading = asyncio.ensure_future(request(process, "/load", body))
    try:
        while not loading.done():
            await asyncio.wait((loading,), timeout=PROGRESS_SECONDS)
            done = 1.0 if loading.done() else (await _health(process))["progress"]
            progress(round(done * PARTS), PARTS)
        await loading
        return await request(process, "/load", {"Operation": Operation.COMMIT})
    finally:
        await cancel_and_wait(loading)


async def _health(process: ModelProcess) -> Any:
    """The body of /health; no progress where the process is gone, which its load says better."""
    try:
        return (await process.client.get("/health", timeout=PROGRESS_SECONDS * 100)).json()
    except Exception:  # any: it has ended, or is busy
        return {"progress": 0.0}


def load_request(stored: StoredModel, options: dict[str, Any]) -> dict[str, Any]:
    """The body of /load for these keyword arguments of Engine."""
    numbers = {name: number for number, name in FLASH_ATTENTION.items()}
    return {
        "Operation": Operation.ALLOC,
        "Parallel": options["parallel"],
        "MaxQueue": options["max_queue"],
        "BatchSize": options.get("batch_size"),
        "FlashAttention": numbers[options["flash_attention"]],
        "KvSize": (options["num_ctx"] or 0) * options["parallel"],
        "KvCacheType": options["kv_cache_type"],
        "NumThreads": options["threads"],
        "Devices": options["devices"] and list(options["devices"]),
        "NumGPU": options.get("gpu_layers"),
        "MainGPU": options.get("main_gpu"),
        "TensorSplit": options.get("tensor_split") and list(options["tensor_split"]),
        "ProjectorPath": None if stored.projector_path is None else str(stored.projector_path),
        "UseMmap": options["mmap"],
        "MeasureKernels": options["measure_kernels"],
        "Draft": options["draft"],
        "PrefixStore": options["prefix_store"],
        "PrefixStoreBytes": options["prefix_store_bytes"],
        "ExpertCacheBytes": options["expert_cache_bytes"],
        "DraftModel": options.get("draft_model"),
    }
