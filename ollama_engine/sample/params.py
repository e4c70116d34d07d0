"""SamplingParams: what a caller may ask of sampling, with defaults, ranges and help text stated once."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from ollama_engine.config import EngineConfig, documented
from ollama_engine.errors import ConfigError, Option
from ollama_engine.option_names import refuses_unknown

__all__ = ["LogitBias", "SamplingParams"]

_INT32_MAX = 2**31 - 1
_FLOAT32_MAX = 3.4028234663852886e38
_PENALTY_MAX = 1e9
"""As good as a ban, and times any number of occurrences still a 32-bit float."""


class LogitBias(Mapping[int, float]):
    """Token id -> bias: an immutable mapping that can be hashed, copied and pickled."""

    __slots__ = ("_biases",)

    def __init__(self, biases: Mapping[int, float] | Iterable[tuple[int, float]] = ()) -> None:
        pairs = biases.items() if isinstance(biases, Mapping) else biases
        self._biases = {_integer("a token of logit_bias", i, 0): _bias(i, value) for i, value in pairs}

    def __getitem__(self, token: int) -> float:
        return self._biases[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._biases)

    def __len__(self) -> int:
        return len(self._biases)

    def __hash__(self) -> int:
        return hash(frozenset(self._biases.items()))

    def __repr__(self) -> str:
        return repr(self._biases)


def _elsewhere() -> dict[str, list[str]]:
    return {"Engine(model, {}=...)": [option.name for option in fields(EngineConfig)]}


@refuses_unknown(_elsewhere)
@documented
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen from the logits, and when generation ends.

    The order of one step: penalties and logit_bias, top_k, temperature, softmax, top_p, min_p, draw. Values are checked
    on construction; a ConfigError says which range was expected and what came. `stop` may be given as one text or any
    iterable of texts and is a tuple afterwards; `logit_bias` as any mapping, of which a copy is kept.
    """

    temperature: float = field(
        default=0.8,
        metadata={"help": "divides the logits: below 1 safer, above 1 wilder; 0 takes the best token [>= 0]"},
    )
    top_k: int = field(default=40, metadata={"help": "keep only this many of the best tokens; 0 keeps all [>= 0]"})
    top_p: float = field(
        default=0.9,
        metadata={"help": "keep the fewest best tokens whose probabilities sum up to this; 1 keeps all [0..1]"},
    )
    min_p: float = field(
        default=0.0,
        metadata={"help": "keep tokens at least this probable relative to the best one; 0 keeps all [0..1]"},
    )
    seed: int | None = field(
        default=None, metadata={"help": "same seed, same tokens; without one every run differs [0..2^64-1]"}
    )
    max_tokens: int | None = field(
        default=None, metadata={"help": "generate at most this many tokens; without it, until the model ends [>= 0]"}
    )
    stop: Iterable[str] = field(
        default=(), metadata={"help": "end before this text appears; several may be given [not empty]"}
    )
    repeat_penalty: float = field(
        default=1.0,
        metadata={"help": "divides positive and multiplies negative logits of recent tokens; 1 is off [> 0]"},
    )
    repeat_last_n: int = field(
        default=64,
        metadata={"help": "how many recent tokens, prompt included, all penalties look at; 0 none, -1 all [>= -1]"},
    )
    presence_penalty: float = field(
        default=0.0, metadata={"help": "subtracted once from the logit of every recent token; 0 is off [usual: -2..2]"}
    )
    frequency_penalty: float = field(
        default=0.0,
        metadata={"help": "subtracted from the logit of a token per recent occurrence; 0 is off [usual: -2..2]"},
    )
    logit_bias: Mapping[int, float] = field(
        default=LogitBias(),
        metadata={"help": "token id -> number added to its logit after the penalties; -inf bans the token [< inf]"},
    )
    logprobs: int | None = field(
        default=None,
        metadata={"help": "report log-probabilities: the chosen token's and those of this many best ones [>= 0]"},
    )
    prompt_logprobs: int | None = field(
        default=None,
        metadata={"help": "report log-probabilities of the prompt's tokens, and of this many best ones each [>= 0]"},
    )

    def __repr__(self) -> str:
        given = (spec.name for spec in fields(self) if getattr(self, spec.name) != spec.default)
        return f"SamplingParams({', '.join(f'{name}={getattr(self, name)!r}' for name in given)})"

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "temperature": _number("temperature", self.temperature, 0),
            "top_k": _integer("top_k", self.top_k, 0),
            "top_p": _number("top_p", self.top_p, 0, 1),
            "min_p": _number("min_p", self.min_p, 0, 1),
            "seed": None if self.seed is None else _integer("seed", self.seed, 0, 2**64 - 1),
            "max_tokens": None if self.max_tokens is None else _integer("max_tokens", self.max_tokens, 0),
            "stop": _stop(self.stop),
            "repeat_penalty": _number("repeat_penalty", self.repeat_penalty, 1e-6, 1e6),
            "repeat_last_n": _integer("repeat_last_n", self.repeat_last_n, -1),
            "presence_penalty": _number("presence_penalty", self.presence_penalty, -_PENALTY_MAX, _PENALTY_MAX),
            "frequency_penalty": _number("frequency_penalty", self.frequency_penalty, -_PENALTY_MAX, _PENALTY_MAX),
            "logit_bias": _logit_bias(self.logit_bias),
            "logprobs": None if self.logprobs is None else _integer("logprobs", self.logprobs, 0),
            "prompt_logprobs": (
                None if self.prompt_logprobs is None else _integer("prompt_logprobs", self.prompt_logprobs, 0)
            ),
        }
        for spec in fields(self):  # frozen: the normalised values replace the given ones here and nowhere else
            object.__setattr__(self, spec.name, checked[spec.name])


def _integer(name: str, value: object, low: int, high: int = _INT32_MAX) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise ConfigError(Option(name), f" must be an integer from {low} to {high}, got {value!r}")
    return number


def _float(value: object) -> float:
    """The value as a float; NaN, which no range admits, for what is not a number (True is not)."""
    return float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan


def _number(name: str, value: object, low: float, high: float = math.inf) -> float:
    number = _float(value)
    if not (math.isfinite(number) and low <= number <= high):
        expected = f">= {low}" if high == math.inf else f"from {low} to {high}"
        raise ConfigError(Option(name), f" must be a finite number {expected}, got {value!r}")
    return number


def _bias(token: int, value: object) -> float:
    number = _float(value)
    if not (number == -math.inf or abs(number) <= _FLOAT32_MAX):
        raise ConfigError(
            Option("logit_bias"),
            f" of token {token!r} must be a finite 32-bit float, or -inf to ban the token, got {value!r}",
        )
    return number


def _logit_bias(value: object) -> LogitBias:
    if not isinstance(value, Mapping):
        raise ConfigError(Option("logit_bias"), f" must map token ids to numbers, got {value!r}")
    return value if isinstance(value, LogitBias) else LogitBias(value)


def _stop(value: object) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Iterable):
        raise ConfigError(Option("stop"), f" must be a text or several texts, got {value!r}")
    stops = tuple(texts)
    for text in stops:
        if not isinstance(text, str) or not text:
            raise ConfigError(Option("stop"), f" must hold non-empty texts, got {text!r}")
    return stops
