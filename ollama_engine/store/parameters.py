"""Parameters of a Modelfile: their names and types, and texts as values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from ollama_engine.errors import ConfigError

__all__ = ["PARAMETERS", "check_parameters", "own_parameters", "parse_parameters"]

PARAMETERS: Final[Mapping[str, type]] = {
    **dict.fromkeys(
        ("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict", "num_keep", "seed",
         "num_predict", "top_k", "repeat_last_n", "mirostat"), int),
    **dict.fromkeys(
        ("temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
         "mirostat_tau", "mirostat_eta", "tfs_z"), float),
    **dict.fromkeys(
        ("use_mmap", "numa", "penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock"), bool),
    "stop": list,
}  # fmt: skip
"""Ollama's options, those of older releases too. Values of `stop` are texts."""

TRUTH: Final = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
OWN_NAMES: Final = {"num_predict": "max_tokens"}
"""Ollama's names -> ours, where they differ."""
NEGATIVE_IS_DEFAULT: Final = ("num_predict", "seed")
NAMES: Final = {int: "integer", float: "float32", bool: "boolean", list: "array"}


def parse_parameters(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Values of `PARAMETER name text` lines. A `stop` that is there several times is a list; of others the last counts.

    Raises ConfigError for a name that is none, or a text that is no value of its type.
    """
    values: dict[str, Any] = {}
    for name, text in pairs:
        kind = PARAMETERS.get(name)
        if kind is None:
            raise ConfigError(f"unknown parameter '{name}'; a Modelfile knows {', '.join(sorted(PARAMETERS))}")
        if kind is list:
            values.setdefault(name, []).append(text)
            continue
        try:
            values[name] = TRUTH[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise ConfigError(f"PARAMETER {name} must be of type {NAMES[kind]}, got {text!r:.80}") from None
    return values


def check_parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values that came as JSON: whole floats become integers, a text as `stop` a list; unknown names stay.

    Raises ConfigError for a value of another type.
    """
    values = {}
    for name, value in given.items():
        kind = PARAMETERS.get(name)
        if kind is list and isinstance(value, str):
            value = [value]  # noqa: PLW2901
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # noqa: PLW2901
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)  # noqa: PLW2901
        wrong = kind is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool)))
        if wrong or (kind is list and not all(isinstance(text, str) for text in value)):
            assert kind is not None, "known, since it is wrong"
            raise ConfigError(f'option "{name}" must be of type {NAMES[kind]}')
        values[name] = value
    return values


def own_parameters(parameters: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Parameters by our names, those in `names` only; those that mean the default are left out."""
    chosen = {}
    for name, value in parameters.items():
        own = OWN_NAMES.get(name, name)
        if own in names and not (name in NEGATIVE_IS_DEFAULT and value < 0):
            chosen[own] = value
    return chosen
