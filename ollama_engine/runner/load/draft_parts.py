"""The draft model: a smaller one of the same vocabulary, or an assistant, loaded beside another on its backend."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, ModelFormatError, Option
from ollama_engine.input import MediaTraits
from ollama_engine.kvcache import Cache, make_reader
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.next_tokens import ASSISTANT
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import Model, known_names, model_class, ties_output
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.caches import make_model_cache
from ollama_engine.runner.load.errors import naming
from ollama_engine.runner.load.memory_plan import (
    batch_size_of,
    layer_cache,
    plan_cache,
    refuse_cache_if_too_large,
)
from ollama_engine.runner.load.projector import known_metadata
from ollama_engine.runner.load.sizes import declared, is_encoder
from ollama_engine.runner.load.source import ModelSource

if TYPE_CHECKING:
    from ollama_engine.ml.device.memory import MemoryReport
    from ollama_engine.models.gemma4.assistant import Gemma4Assistant

__all__ = ["DraftParts", "can_draft", "is_assistant", "load_draft", "open_draft", "planned_draft"]

TOKENS = "tokenizer.ggml.tokens"


@dataclass(slots=True)
class DraftParts:
    """The parts of a draft model. Its weights are on the CPU, and its graphs in the memory of the others."""

    gguf: GGUFFile
    weights: Weights
    model: Model | Gemma4Assistant
    cache: Cache | None
    """Its own; None for an assistant, which reads the other model's."""
    executor: Executor

    @property
    def executors(self) -> tuple[Executor, ...]:
        """Its one executor, as a model's head has several."""
        return (self.executor,)

    def beside(self, report: MemoryReport) -> MemoryReport:
        """The report of the other model, with what this one takes."""
        *others, host = report.devices
        taken = self.weights.planned()[host.device]
        both = replace(host, **{name: getattr(host, name) + nbytes for name, nbytes in taken.items()})
        if self.cache is not None:
            both = replace(
                both, cache=both.cache + sum(self.cache.nbytes.values()), work=both.work + self.cache.mask_bytes
            )
        layers = {**report.layers, "draft model": sum(self.weights.plan.by_layer().values())}
        return replace(report, devices=(*others, both), layers=layers)


def open_draft(config: EngineConfig, undo: contextlib.ExitStack) -> GGUFFile | None:
    """The draft model's file, which `undo` closes; None without one. Raises OSError, ModelFormatError, ConfigError."""
    if config.draft_model is None:
        return None
    path = ModelSource.of(config.draft_model, None, EngineConfig()).path
    with naming(path):
        return undo.enter_context(GGUFFile(path))


def can_draft(draft_model: str, path: str | os.PathLike[str]) -> bool:
    """Whether a draft model is one for this file: another file, with the same vocabulary. Raises as opening them."""
    with contextlib.ExitStack() as undo:
        draft = open_draft(EngineConfig(draft_model=draft_model), undo)
        target = undo.enter_context(GGUFFile(path))
        if draft is None or os.path.samefile(draft.path, path) or _tokens(draft) != _tokens(target):
            return False
        n_embd = target.metadata.get(f"{target.architecture}.embedding_length")
        return not is_assistant(draft) or (
            target.architecture == "gemma4" and draft.metadata.get(f"{ASSISTANT}.embedding_length_out") == n_embd
        )


def is_assistant(gguf: GGUFFile | None) -> bool:
    """Whether a file holds an assistant, which drafts for one model alone."""
    return gguf is not None and gguf.architecture == ASSISTANT


def load_draft(
    backend: Backend, gguf: GGUFFile, target: Weights, model: Model, cache: Cache, config: EngineConfig,
    undo: contextlib.ExitStack,
) -> DraftParts:  # fmt: skip
    """Load a draft model for `model`, with whose files its own are watched; `undo` closes its parts.

    Raises ConfigError where it is none for that model, and what loading a model raises.
    """
    with naming(gguf.path):
        refuse_other_vocabulary(gguf, target.gguf)
        if is_assistant(gguf):
            return _load_assistant(backend, gguf, target, model, cache, config, undo)
        return _load_model(backend, gguf, target, config, undo)


def _load_assistant(
    backend: Backend, gguf: GGUFFile, target: Weights, model: Model, cache: Cache, config: EngineConfig,
    undo: contextlib.ExitStack,
) -> DraftParts:  # fmt: skip
    from ollama_engine.models.gemma4.assistant import Gemma4Assistant  # noqa: PLC0415 (few models have one; 20 ms)

    if len(backend.devices) > 1:
        raise ConfigError(
            Option("draft_model"), f" is an assistant, which computes on the CPU, and some layers do not: {gguf.path}",
            advice=[("choose ", Option("gpu_layers", "0"))],
        )  # fmt: skip
    weights = undo.enter_context(Weights(backend, gguf, files=target.files))
    weights.load()
    try:
        assistant = Gemma4Assistant(known_metadata(gguf), weights, model)
    except ModelFormatError as error:
        raise ConfigError(Option("draft_model"), f" is no assistant of this model: {error}") from error
    executor = Executor(
        backend, assistant, make_reader(cache, assistant.read_layers), config.parallel, config.parallel,
        traits=MediaTraits(), splits=assistant,
    )  # fmt: skip
    executor.reserve(config.parallel)
    weights.repack()
    return DraftParts(gguf, weights, assistant, None, executor)


def _load_model(
    backend: Backend, gguf: GGUFFile, target: Weights, config: EngineConfig, undo: contextlib.ExitStack
) -> DraftParts:
    factory = model_class(known_metadata(gguf).architecture)
    weights = undo.enter_context(Weights(backend, gguf, tied=ties_output(factory), files=target.files))
    weights.load()
    model = factory(known_metadata(gguf), known_names(gguf.architecture, weights))
    if is_encoder(model):
        raise ConfigError(Option("draft_model"), f" is a model that writes; {gguf.path} gives vectors")
    planned = plan_cache(backend, weights, model, config)
    refuse_cache_if_too_large(backend, planned, 0)
    cache = make_model_cache(backend, weights, model, config)
    if cache.recurrent is not None:
        raise ConfigError(
            Option("draft_model"), f" has recurrent states, which cannot go back behind a wrong guess: {gguf.path}",
            advice=["choose one that attends only"],
        )  # fmt: skip
    executor = Executor(backend, model, cache, batch_size_of(config), config.parallel)
    executor.reserve(config.parallel)
    weights.repack()
    return DraftParts(gguf, weights, model, cache, executor)


def planned_draft(report: MemoryReport, config: EngineConfig) -> MemoryReport:
    """The planned memory with that of a draft model: weights in the mapped file, or copied, and the cache."""
    with contextlib.ExitStack() as undo:
        gguf = open_draft(config, undo)
        if gguf is None:
            return report
        cache = 0 if is_assistant(gguf) else _planned_cache(gguf, config)
        nbytes = sum(info.nbytes for info in gguf.tensors.values())
    *others, host = report.devices
    kind = "mapped" if config.mmap else "weights"
    both = replace(host, cache=host.cache + cache, **{kind: getattr(host, kind) + nbytes})
    return replace(report, devices=(*others, both), layers={**report.layers, "draft model": nbytes})


def _planned_cache(gguf: GGUFFile, config: EngineConfig) -> int:
    with declared(gguf) as (model, _):
        return 0 if model is None else sum(layer_cache(layer, model, config) for layer in model.cache_layers)


def _tokens(gguf: GGUFFile) -> list[str]:
    tokens = gguf.metadata.get(TOKENS)
    return tokens if isinstance(tokens, list) else []


def refuse_other_vocabulary(gguf: GGUFFile, target: GGUFFile) -> None:
    """Raise ConfigError where a draft model's tokens are others than those of the model that it is for."""
    ours, theirs = _tokens(gguf), _tokens(target)
    if ours == theirs:
        return
    if len(ours) != len(theirs):
        differs = f"{len(ours)} tokens, and {os.path.basename(target.path)} {len(theirs)}"
    else:
        at = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        differs = f"{ours[at]!r:.40} as token {at}, and {os.path.basename(target.path)} {theirs[at]!r:.40}"
    raise ConfigError(
        Option("draft_model"), f" has the vocabulary of its model; {os.path.basename(gguf.path)} has {differs}",
        advice=["choose a smaller model of the same family"],
    )  # fmt: skip
