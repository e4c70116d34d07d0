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

RUNNER = {
    "num_ctx": int, "num_batch": int, "num_gpu": int, "main_gpu": int, "use_mmap": bool, "num_thread": int,
}  # fmt: skip
"""Options that a model is loaded with."""

SAMPLING = {
    "temperature": float, "top_k": int, "top_p": float, "min_p": float, "typical_p": float, "repeat_last_n": int,
    "repeat_penalty": float, "presence_penalty": float, "frequency_penalty": float, "seed": int, "num_predict": int,
    "num_keep": int, "draft_num_predict": int, "stop": list, "mirostat": int, "mirostat_tau": float,
    "mirostat_eta": float,
}  # fmt: skip

WITHOUT_EFFECT = {"numa": bool, "penalize_newline": bool, "tfs_z": float, "low_vram": bool, "f16_kv": bool,
                  "logits_all": bool, "vocab_only": bool, "use_mlock": bool, "embedding_only": bool}  # fmt: skip
"""Options that Ollama has, or had, and nothing here reads."""

KNOWN: Mapping[str, type] = RUNNER | SAMPLING | WITHOUT_EFFECT
NAMES = {int: "integer", float: "float32", bool: "boolean", list: "array"}
CONTEXTS = 10
"""num_ctx, so often, is the most that an answer without num_predict has: it may have no end."""
SEED_SPACE = 2**64
INT32_MAX = 2**31 - 1
LARGEST = 1e9
"""The largest number that is not whole. No option has a use for more; infinities and NaN are refused."""
RANGES = {"temperature": (0.0, LARGEST), "top_k": (0, INT32_MAX), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0),
          "typical_p": (0.0, 1.0), "num_keep": (0, INT32_MAX)}  # fmt: skip
"""Ranges of options. For a value beyond, the nearest in the range is taken, as in Ollama."""


@dataclass(frozen=True)
class ModelOptions:
    """Options, checked.

    Attributes:
        runner: what the model is loaded with, under Ollama's names.
        sampling: all others.
        ignored: names of those given that do nothing.
        asked: whole numbers that were given where others are taken, which have 32 bits.
    """

    runner: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    asked: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_keep(self) -> int:
        """Tokens at the beginning of the prompt that stay when the context is full."""
        return int(self.within("num_keep", 4))

    @property
    def drafts(self) -> bool:
        """Whether tokens may be guessed. How many is the engine's choice, which measures what pays."""
        return self.sampling.get("draft_num_predict") != 0

    def clamped(self, context_length: int | None) -> list[str]:
        """The options of which another value is taken than was given: "top_p:1.5->1.0".

        context_length: tokens that the model was trained for, which num_ctx does not exceed.
        """
        given = {**self.runner, **self.sampling}
        taken = given | {name: self.within(name, 0) for name in RANGES} | {"repeat_penalty": self.repeat_penalty}
        if context_length and "num_ctx" in given:
            taken["num_ctx"] = min(given["num_ctx"], context_length)
        given |= self.asked
        return [f"{name}:{_shortened(value)}->{taken[name]}" for name, value in given.items() if value != taken[name]]

    @property
    def repeat_penalty(self) -> float:
        """1, which is off, in place of 0, by which nothing can be divided."""
        return self.sampling.get("repeat_penalty", 1.0) or 1.0

    def within(self, name: str, default: float) -> Any:
        """The value of an option of RANGES, or the nearest in its range."""
        low, high = RANGES[name]
        return min(high, max(low, self.sampling.get(name, default)))

    def params(self, num_ctx: int, logprobs: int | None) -> SamplingParams:
        """How tokens are chosen. Values out of range are the nearest that is in it, as in Ollama."""
        given = self.sampling
        predict = given.get("num_predict", -1)
        seed = given.get("seed", -1)
        last_n = given.get("repeat_last_n", 64)
        return SamplingParams(
            temperature=self.within("temperature", 0.8),
            top_k=self.within("top_k", 40),
            top_p=self.within("top_p", 0.9),
            min_p=self.within("min_p", 0.0),
            typical_p=self.within("typical_p", 1.0),
            repeat_last_n=num_ctx if last_n < 0 else last_n,
            repeat_penalty=self.repeat_penalty,
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


def _shortened(value: object) -> str:
    """A number for the log and for a header: what it was set to stands behind it, and is not to be cut off."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:20]}..."


def read_options(*layers: Mapping[str, Any] | None) -> ModelOptions:
    """Options from layers, the lowest first. Raises ApiError for wrong types."""
    given: dict[str, Any] = {}
    unknown: dict[str, None] = {}
    beyond_32_bits: dict[str, int] = {}
    for layer in layers:
        for name, value in (layer or {}).items():
            if name not in KNOWN:
                log.warning("invalid option provided: %r", name[:60])
                unknown[name] = None
            elif value is not None:
                given[name] = of_type(name, value, KNOWN[name])
                beyond_32_bits.pop(name, None)
                if KNOWN[name] is int and name != "seed" and int(value) != given[name]:
                    beyond_32_bits[name] = int(value)
    return ModelOptions(
        {name: value for name, value in given.items() if name in RUNNER},
        {name: value for name, value in given.items() if name in SAMPLING},
        (*unknown, *(name for name in given if name in WITHOUT_EFFECT)),
        beyond_32_bits,
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
