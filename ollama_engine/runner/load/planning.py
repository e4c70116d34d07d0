"""Planning: how much memory a model will take, found out without taking it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, Option
from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.device.memory import DeviceMemory, MemoryReport
from ollama_engine.ml.device.placement_plan import PlacementPlan
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.weights.weight_plan import plan_weights
from ollama_engine.models import model_class, ties_output
from ollama_engine.models.next_tokens import head_layer
from ollama_engine.runner.load.caches import make_text_executor
from ollama_engine.runner.load.draft_parts import planned_draft
from ollama_engine.runner.load.errors import naming
from ollama_engine.runner.load.expert_memory import plan_experts
from ollama_engine.runner.load.fit import fit
from ollama_engine.runner.load.head_parts import uses_head
from ollama_engine.runner.load.loading import backend_params, opened
from ollama_engine.runner.load.memory_plan import layer_cache, layer_masks, plan_masks, plan_states
from ollama_engine.runner.load.projector import known_metadata
from ollama_engine.runner.load.serving_memory import graph_bounds, image_bounds, prefix_bounds, text_bounds
from ollama_engine.runner.load.sizes import declared, is_encoder, max_nodes, tower_memory
from ollama_engine.runner.load.source import ModelSource

__all__ = ["invented_gpus", "plan_memory"]


def plan_memory(
    source: str | os.PathLike[str],
    config: EngineConfig,
    *,
    projector: str | os.PathLike[str] | None = None,
    gpu_memory: Sequence[int] | None = None,
    more_memory: Mapping[str, int] | None = None,
) -> MemoryReport:
    """The memory that loading this file with these options will take. Reads its header, and takes no memory for it.

    Weights and cache are as loading takes them; `graph`, which loading measures, is an estimate on the safe side, and
    `work` is what the masks of a full batch take at most. `load` still decides: other programs take memory meanwhile.
    `gpu_memory`: free bytes of the GPUs of another machine, to plan for instead of this one's. `more_memory`: bytes
    that will be free on a device beyond those that are now, by its name.

    Raises OSError, ModelFormatError, UnsupportedModelError, ConfigError.
    """
    path, projector, config, _ = ModelSource.of(source, projector, config)
    with naming(path), contextlib.ExitStack() as undo:
        gguf = opened(path, projector, undo)
        invented = None if gpu_memory is None else invented_gpus(gpu_memory)
        if invented is not None and config.devices is not None:
            raise ConfigError(Option("gpu_memory"), " is for GPUs that are not here, and ", Option("devices"),
                              " names some that are; leave one of them out")  # fmt: skip
        plans: list[PlacementPlan] = []

        def choose(devices: tuple[Device, ...]) -> tuple[Device, ...]:
            plans.append(fit(gguf, config, _freed(devices[:-1], more_memory) if invented is None else invented))
            return devices[-1:]  # a plan needs no GPU

        here = config
        if invented is not None:
            here = replace(config, devices=None, gpu_layers=0, main_gpu=None, tensor_split=None)
        backend = undo.enter_context(Backend(backend_params(here), max_nodes=max_nodes(gguf), choose=choose))
        return planned_draft(*_report(backend, gguf, plans[0], config))


def _freed(gpus: Sequence[Device], more: Mapping[str, int] | None) -> Sequence[Device]:
    return [replace(gpu, memory_free=gpu.memory_free + more.get(gpu.name, 0)) for gpu in gpus] if more else gpus


def invented_gpus(gpu_memory: Sequence[int]) -> tuple[Device, ...]:
    """GPUs that exist in plans only, of which this many bytes are free. Raises ConfigError for what is no size."""
    sizes = isinstance(gpu_memory, Sequence) and not isinstance(gpu_memory, (str, bytes))
    if not sizes or not gpu_memory or not all(type(nbytes) is int and nbytes > 0 for nbytes in gpu_memory):
        raise ConfigError(
            Option("gpu_memory"), f" is the free memory of each GPU, in bytes above 0, got {gpu_memory!r}",
            advice=[("plan without GPUs by ", Option("gpu_layers", 0))],
        )  # fmt: skip
    return tuple(
        Device(name=f"GPU{number}", kind="gpu", library="GPU", index=number, description="", memory_total=nbytes,
               memory_free=nbytes)
        for number, nbytes in enumerate(gpu_memory)
    )  # fmt: skip


def _report(
    backend: Backend, gguf: GGUFFile, plan: PlacementPlan, config: EngineConfig
) -> tuple[MemoryReport, EngineConfig]:
    """The report, and the options with num_ctx decided."""
    names = [*(plan.devices[gpu].name for gpu in plan.order), backend.devices[-1].name]
    planned = {device.name: device for device in plan.devices[:-1]} | {names[-1]: plan.devices[-1]}
    tied = ties_output(model_class(known_metadata(gguf).architecture))
    head = uses_head(gguf, config, cpu_alone=not plan.order)
    weights = plan_weights(
        backend, gguf, plan.placement(), mmap=config.mmap, tied=tied, cpu=len(names) - 1, head=head,
        expert_bytes=plan_experts(gguf, config, cpu_alone=not plan.order),
    )  # fmt: skip
    masks, counted, states, cache, serving = 0, 0, 0, 0, dict[str, int]()
    with declared(gguf) as (model, here):
        if model is not None:
            config = config.for_model(model.context_length)
            serving = image_bounds(model, config, tower_memory(model, here, config))
        if model is not None and not is_encoder(model):
            serving |= prefix_bounds(model, config)
            masks = plan_masks(model, config)
            if not plan.order:
                counted = masks  # graphs of the CPU alone have them in `work`
            states = plan_states(model, config)
            if head:
                layer = head_layer(model)
                cache = layer_cache(layer, model, config)
                masks += layer_masks(layer, model, config)
            texts = make_text_executor(here, model, config, reserve=False)
            if texts is not None:
                texts.measure_batch(1)
            # Graphs of answers have about as many tensors as those of texts.
            serving |= graph_bounds(texts, texts) | text_bounds(here, texts, config, {})
    taken = weights.planned(names)
    devices = tuple(
        DeviceMemory(
            device=name,
            cache=planned[name].cache + (states + cache if name == names[-1] else 0),
            states=states if name == names[-1] else 0,
            graph=planned[name].graph - (counted if name == names[-1] else 0),
            work=masks if name == names[-1] else 0,
            **taken[name],
        )
        for name in names
    )
    return MemoryReport(devices, weights.by_layer(), plan, serving), config
