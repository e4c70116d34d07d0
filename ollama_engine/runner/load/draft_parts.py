"""The draft model: a smaller one of the same vocabulary, an assistant or an EAGLE-3 head, loaded beside another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, ModelFormatError, Option
from ollama_engine.input import MediaTraits
from ollama_engine.kvcache import Cache, make_reader
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.next_tokens import ASSISTANT, EAGLE3
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import MakesLogits, Model, known_names, model_class, ties_output
from ollama_engine.models.aux_states import AuxStatesModel
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.eagle3 import Eagle3Head, read_eagle3
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.caches import make_model_cache
from ollama_engine.runner.load.errors import naming, warn_of_unused
from ollama_engine.runner.load.head_parts import hidden_giver
from ollama_engine.runner.load.memory_plan import (
    batch_size_of,
    cells_bytes,
    layer_cache,
    num_ctx_of,
    plan_cache,
    refuse_cache_if_too_large,
)
from ollama_engine.runner.load.projector import known_metadata
from ollama_engine.runner.load.sizes import declared, is_encoder
from ollama_engine.runner.load.source import ModelSource

if TYPE_CHECKING:
    from ollama_engine.ml.device.memory import MemoryReport
    from ollama_engine.models.gemma4.assistant import Gemma4Assistant

__all__ = ["DraftParts", "can_draft", "load_draft", "open_draft", "planned_draft", "states_giver"]

TOKENS = "tokenizer.ggml.tokens"


@dataclass(slots=True)
class DraftParts:
    """The parts of a draft model. Its weights are on the CPU, and its graphs in the memory of the others."""

    gguf: GGUFFile
    weights: Weights
    model: Model | Gemma4Assistant | Eagle3Head
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
        if draft.architecture == ASSISTANT:
            return target.architecture == "gemma4" and draft.metadata.get(f"{ASSISTANT}.embedding_length_out") == n_embd
        return draft.architecture != EAGLE3 or draft.metadata.get(f"{EAGLE3}.target_hidden_size") == n_embd


def states_giver(gguf: GGUFFile | None, model: Model, *, head: bool) -> MakesLogits | None:
    """The model, as its steps give the states that its own head or a draft model reads; None where neither reads any.

    Raises ConfigError where the model has no such states, or the two want different ones.
    """
    kind = None if gguf is None else gguf.architecture
    if gguf is None or kind != EAGLE3:
        return hidden_giver(model) if head or kind == ASSISTANT else None
    if head:
        raise ConfigError(
            Option("draft"), " is mtp, and ", Option("draft_model"), " is an EAGLE-3 head, which reads other states",
            advice=[("leave ", Option("draft", "auto"))],
        )  # fmt: skip
    with naming(gguf.path), _refusing("EAGLE-3 head"):
        return AuxStatesModel(model, read_eagle3(known_metadata(gguf)).blocks)


@contextlib.contextmanager
def _refusing(kind: str) -> Iterator[None]:
    """Turns the error of a draft model that does not fit into one about the option."""
    try:
        yield
    except ModelFormatError as error:
        raise ConfigError(Option("draft_model"), f" is no {kind} of this model: {error}") from error


def load_draft(
    backend: Backend, gguf: GGUFFile, target: Weights, model: Model, cache: Cache, config: EngineConfig,
    undo: contextlib.ExitStack,
) -> DraftParts:  # fmt: skip
    """Load a draft model for `model`, with whose files its own are watched; `undo` closes its parts.

    Raises ConfigError where it is none for that model, and what loading a model raises.
    """
    with naming(gguf.path):
        if os.path.samefile(gguf.path, target.gguf.path):
            raise ConfigError(
                Option("draft_model"), " is the file of the model itself, whose guesses take as long as answers",
                advice=["choose a smaller model of the same family", ("leave ", Option("draft_model"), " out")],
            )  # fmt: skip
        refuse_other_vocabulary(gguf, target.gguf)
        if gguf.architecture not in (ASSISTANT, EAGLE3):
            return _load_model(backend, gguf, target, config, undo)
        if len(backend.devices) > 1:
            raise ConfigError(
                Option("draft_model"), f" reads the model's states on the CPU, and some layers compute elsewhere: "
                f"{gguf.path}", advice=[("choose ", Option("gpu_layers", 0))],
            )  # fmt: skip
        weights = undo.enter_context(Weights(backend, gguf, files=target.files))
        weights.load()
        load = _load_assistant if gguf.architecture == ASSISTANT else _load_eagle3
        parts = load(backend, weights, model, cache, config)
        warn_of_unused(parts.model.unused_weights, gguf.architecture)
        parts.executor.reserve(config.parallel)
        weights.repack()
        return parts


def _load_assistant(backend: Backend, weights: Weights, model: Model, cache: Cache, config: EngineConfig) -> DraftParts:
    from ollama_engine.models.gemma4.assistant import Gemma4Assistant  # noqa: PLC0415 (few models have one; 20 ms)

    with _refusing("assistant"):
        assistant = Gemma4Assistant(known_metadata(weights.gguf), weights, model)
    executor = Executor(
        backend, assistant, make_reader(cache, assistant.read_layers), config.parallel, config.parallel,
        traits=MediaTraits(), splits=assistant,
    )  # fmt: skip
    return DraftParts(weights.gguf, weights, assistant, None, executor)


def _load_eagle3(backend: Backend, weights: Weights, model: Model, cache: Cache, config: EngineConfig) -> DraftParts:
    assert isinstance(model, Decoder), "states_giver has checked it"
    with _refusing("EAGLE-3 head"):
        head = Eagle3Head(known_metadata(weights.gguf), weights, model)
    refuse_cache_if_too_large(backend, plan_cache(backend, weights, head, config), 0)
    own = make_model_cache(backend, weights, head, config)
    executor = Executor(
        backend, head, own, batch_size_of(config), config.parallel, traits=MediaTraits(), splits=head
    )  # fmt: skip
    return DraftParts(weights.gguf, weights, head, own, executor)


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
        cache = 0 if gguf.architecture == ASSISTANT else _planned_cache(gguf, config)
        nbytes = sum(info.nbytes for info in gguf.tensors.values())
    *others, host = report.devices
    kind = "mapped" if config.mmap else "weights"
    both = replace(host, cache=host.cache + cache, **{kind: getattr(host, kind) + nbytes})
    return replace(report, devices=(*others, both), layers={**report.layers, "draft model": nbytes})


def _planned_cache(gguf: GGUFFile, config: EngineConfig) -> int:
    if gguf.architecture == EAGLE3:
        head = read_eagle3(known_metadata(gguf))
        return head.n_layer * cells_bytes(head.layer, config.parallel * num_ctx_of(config), config)
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
        differs = f"{len(ours)} tokens, and {os.path.basename(target.path)} has {len(theirs)}"
    else:
        at = next(i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        differs = f"{ours[at]!r:.40} as token {at}, and {os.path.basename(target.path)} has {theirs[at]!r:.40}"
    made_for_one = gguf.architecture in (ASSISTANT, EAGLE3)
    choice = "the one that was made for this model" if made_for_one else "a smaller model of the same family"
    raise ConfigError(
        Option("draft_model"), f" needs the vocabulary of the model: {os.path.basename(gguf.path)} has {differs}",
        advice=[f"choose {choice}"],
    )  # fmt: skip
