"""The `options` of a request, above those of the model's Modelfile: how to sample, and how to load."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ollama_engine.sample import SamplingParams
from ollama_engine.server.errors import ApiError

log = logging.getLogger(__name__)

__all__ = ["ModelOptions", "read_options"]

RUNNER = {"num_ctx": int, "num_batch": int, "num_gpu": int, "main_gpu": int, "use_mmap": bool, "num_thread": int,
          "draft_num_predict": int}  # fmt: skip
"""Options that a model is loaded with."""

SAMPLING = {
    "temperature": float, "top_k": int, "top_p": float, "min_p": float, "typical_p": float, "repeat_last_n": int,
    "repeat_penalty": float, "presence_penalty": float, "frequency_penalty": float, "seed": int, "num_predict": int,
    "num_keep": int, "stop": list, "mirostat": int, "mirostat_tau": float, "mirostat_eta": float,
}  # fmt: skip

WITHOUT_EFFECT = {"numa": bool, "penalize_newline": bool, "tfs_z": float, "low_vram": bool, "f16_kv": bool,
                  "logits_all": bool, "vocab_only": bool, "use_mlock": bool, "embedding_only": bool}  # fmt: skip
"""Options of older releases, accepted."""

KNOWN: Mapping[str, type] = RUNNER | SAMPLING | WITHOUT_EFFECT
NAMES = {int: "integer", float: "float32", bool: "boolean", list: "array"}
CONTEXTS = 10
"""num_ctx, so often, is the most that an answer without num_predict has: it may have no end."""
SEED_SPACE = 2**64
INT32_MAX = 2**31 - 1
LARGEST = 1e9
"""Of what is no whole number. No option has a use for more; infinities and NaN are none of these."""


@dataclass(frozen=True)
class ModelOptions:
    """Options, checked.

    Attributes:
        runner: what the model is loaded with, under Ollama's names.
        sampling: all others.
    """

    runner: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_keep(self) -> int:
        """Tokens at the beginning of the prompt that stay when the context is full."""
        return max(0, int(self.sampling.get("num_keep", 4)))

    def params(self, num_ctx: int, logprobs: int | None) -> SamplingParams:
        """How tokens are chosen. Values out of range are the nearest that is in it, as in Ollama."""
        given = self.sampling
        predict = given.get("num_predict", -1)
        seed = given.get("seed", -1)
        last_n = given.get("repeat_last_n", 64)
        return SamplingParams(
            temperature=max(0.0, given.get("temperature", 0.8)),
            top_k=max(0, given.get("top_k", 40)),
            top_p=clamped(given.get("top_p", 0.9)),
            min_p=clamped(given.get("min_p", 0.0)),
            typical_p=clamped(given.get("typical_p", 1.0)),
            repeat_last_n=num_ctx if last_n < 0 else last_n,
            repeat_penalty=given.get("repeat_penalty", 1.0) or 1.0,
            presence_penalty=given.get("presence_penalty", 0.0),
            frequency_penalty=given.get("frequency_penalty", 0.0),
            mirostat=given.get("mirostat", 0),
            mirostat_tau=given.get("mirostat_tau", 5.0),
            mirostat_eta=given.get("mirostat_eta", 0.1),
            seed=None if seed < 0 else seed % SEED_SPACE,
            max_tokens=predict if predict > 0 else CONTEXTS * num_ctx,
            stop=tuple(text for text in given.get("stop", ()) if text),
            logprobs=logprobs,
        )


def read_options(*layers: Mapping[str, Any] | None) -> ModelOptions:
    """Options from layers, the lowest first. Raises ApiError for wrong types; unknown names are logged."""
    found: dict[str, Any] = {}
    for layer in layers:
        for name, value in (layer or {}).items():
            if name not in KNOWN:
                log.warning("invalid option provided: %r", name[:60])
            elif value is not None:
                found[name] = of_type(name, value, KNOWN[name])
    return ModelOptions(
        {name: value for name, value in found.items() if name in RUNNER},
        {name: value for name, value in found.items() if name in SAMPLING},
    )


def of_type(name: str, value: object, kind: type) -> Any:
    """The value, as Go reads it into a field of that type: numbers are cut to integers, nothing else is converted."""
    if kind in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
        if kind is float and abs(value) <= LARGEST:
            return float(value)
        if kind is int and (isinstance(value, int) or math.isfinite(value)):
            return int(value) if name == "seed" else max(-INT32_MAX, min(INT32_MAX, int(value)))
    if kind is bool and isinstance(value, bool):
        return value
    if kind is list and isinstance(value, str):
        return [value]
    if kind is list and isinstance(value, Iterable) and not isinstance(value, Mapping):
        texts = list(value)
        if all(isinstance(text, str) for text in texts):
            return texts
        raise ApiError(400, f'option "{name}" must be of an array of strings')
    raise ApiError(400, f'option "{name}" must be of type {NAMES[kind]}')


def clamped(share: float) -> float:
    """The nearest number from 0 to 1."""
    return min(1.0, max(0.0, share))
