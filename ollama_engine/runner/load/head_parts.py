"""The model's own head for drafts (multi-token prediction), where its file has one: cache and executor."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, ModelFormatError, Option
from ollama_engine.input import MediaTraits
from ollama_engine.kvcache import Cache
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.next_tokens import EACH_HEAD, has_head, next_token_tensors
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.weights.weights import Weights
from ollama_engine.models import MakesLogits, Model, known_names
from ollama_engine.models.next_tokens import next_token_head
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.caches import make_model_cache
from ollama_engine.runner.load.memory_plan import batch_size_of, plan_cache, plan_masks, refuse_cache_if_too_large
from ollama_engine.runner.load.vision import traits_of

__all__ = ["HeadParts", "can_use_head", "hidden_giver", "load_head", "uses_head", "without_head"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class HeadParts:
    """The parts of a head. Its weights are the model's, and its graphs in the memory of the others."""

    cache: Cache
    executors: tuple[Executor, ...]
    """The head's; behind it, for a large vocabulary, that of the head of `n_first` tokens, whose guesses cost less."""
    n_first: int


def uses_head(gguf: GGUFFile, config: EngineConfig, *, cpu_alone: bool) -> bool:
    """Whether the file has a head that these options may use.

    A head computes on the CPU, for a model that does. Raises ConfigError where the options ask for one in vain.
    """
    if config.draft not in ("auto", "mtp") or (config.draft == "auto" and config.draft_model is not None):
        return False
    there = has_head(gguf.metadata, gguf.tensors)
    if config.draft == "mtp" and not there:
        raise ConfigError(
            Option("draft"), f" is mtp, and the file has {_found_instead(gguf)}",
            advice=[("leave ", Option("draft", "auto")), ("name a ", Option("draft_model"))],
        )  # fmt: skip
    if config.draft == "mtp" and not cpu_alone:
        raise ConfigError(
            Option("draft"), " is mtp, which computes on the CPU, and some layers do not",
            advice=[("choose ", Option("gpu_layers", 0))],
        )  # fmt: skip
    return there and cpu_alone


def _found_instead(gguf: GGUFFile) -> str:
    """What a file has where one head is expected."""
    if any(name.startswith("mtp.") for name in gguf.tensors):
        return "its head under the checkpoint's names (mtp.), which do not say how norms are stored: convert it anew"
    n = sum(name.endswith(EACH_HEAD) for name in gguf.tensors)
    if n == 1:
        return "a head that its nextn_predict_layers does not count"
    return (
        f"{n} heads, of which none can be used" if n else "no head that predicts further tokens (blk.N.nextn tensors)"
    )


def can_use_head(path: str | os.PathLike[str]) -> bool:
    """Whether a file has a head. Raises as opening it."""
    with GGUFFile(path) as gguf:
        return has_head(gguf.metadata, gguf.tensors)


def without_head(weights: Weights) -> Mapping[str, Tensor]:
    """The weights of the model alone, by the names that it knows."""
    names = known_names(weights.gguf.architecture, weights)
    of_head = next_token_tensors(weights.gguf.metadata, names)
    return {name: tensor for name, tensor in names.items() if name not in of_head}


def hidden_giver(model: Model) -> MakesLogits | None:
    """The model, if its steps can give the hidden states that its logits are made of."""
    return model if isinstance(model, MakesLogits) else None


def load_head(backend: Backend, weights: Weights, model: Model, config: EngineConfig) -> HeadParts | None:
    """The head of a model; None where `weights` have none, or one of no known kind, or one that does not fit.

    Raises ConfigError for such a head where it was asked for, and NoMemoryError.
    """
    names = known_names(weights.gguf.architecture, weights)
    if not has_head(weights.gguf.metadata, names):
        return None
    try:
        head = next_token_head(model, names)
        reason = f"architecture {model.architecture} has none that is known" if head is None else ""
    except ModelFormatError as error:
        head, reason = None, str(error)
    if head is None:
        if config.draft == "mtp":
            raise ConfigError(Option("draft"), f" is mtp, and the file's head is of no use: {reason}")
        log.warning("the file's head, which predicts further tokens, is left aside: %s", reason)
        return None
    refuse_cache_if_too_large(backend, plan_cache(backend, weights, head, config), plan_masks(head, config))
    cache = make_model_cache(backend, weights, head, config)
    traits = MediaTraits(position_axes=(traits_of(model) or MediaTraits()).position_axes)
    part = head.of_first_tokens()
    executors = tuple(
        Executor(backend, each, cache, batch_size_of(config), config.parallel, traits=traits, splits=each)
        for each in (head, part)
        if each is not None
    )
    for executor in executors:
        executor.reserve(config.parallel)
    return HeadParts(cache, executors, 0 if part is None else part.n_guessed)
