"""SamplingParams: what a caller may ask of sampling, with defaults, ranges and help text stated once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ollama_engine.config import EngineConfig, as_float, as_whole, documented
from ollama_engine.errors import ConfigError, Option
from ollama_engine.option_names import refuses_unknown

__all__ = ["DEFAULT_SAMPLERS", "SAMPLERS", "LogitBias", "SamplingParams"]

SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "adaptive_p"
)  # fmt: skip
"""llama.cpp's names of the samplers that a chain can have, in its default order; adaptive_p draws, so it is last."""

DEFAULT_SAMPLERS = (
    "penalties", "dry", "top_n_sigma", "top_k", "temperature", "typ_p", "top_p", "min_p", "xtc", "adaptive_p"
)  # fmt: skip
"""The order of Ollama, vLLM and transformers: top-p and min-p see probabilities as the temperature makes them."""

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
    return {
        "Engine(model, {}=...)": [option.name for option in fields(EngineConfig)],
        "Engine.generate(prompt, {}=...)": ["n", "best_of"],
    }


@refuses_unknown(_elsewhere)
@documented
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen from the logits, and when generation ends.

    The order of one step: token mask, logit_bias, then the samplers in the order that `samplers` names them, then the
    draw. A sampler that is off, or not named, does nothing. docs/sampling.md says what each does and where it is from.

    Values are checked on construction; a ConfigError says which range was expected and what came. `stop`,
    `dry_sequence_breakers` and `samplers` may be given as one text or any iterable of texts and are tuples afterwards;
    `logit_bias` as any mapping, of which a copy is kept. `stop` and `logit_bias` may be None: there are none then.
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
    typical_p: float = field(
        default=1.0,
        metadata={"help": "keep the most typical tokens whose probabilities sum up to this; 1 keeps all [0..1]"},
    )
    top_n_sigma: float = field(
        default=-1.0,
        metadata={"help": "keep logits within so many standard deviations of the best; 0 and less keep all [finite]"},
    )
    xtc_probability: float = field(
        default=0.0, metadata={"help": "how often XTC excludes top choices; 0 is off [0..1]"}
    )
    xtc_threshold: float = field(
        default=0.1,
        metadata={"help": "XTC excludes all tokens this probable but the least of them; above 0.5 is off [0..1]"},
    )
    min_keep: int = field(
        default=0, metadata={"help": "tokens that top_p, min_p, typical_p and XTC leave at least [>= 0]"}
    )
    dynatemp_range: float = field(
        default=0.0,
        metadata={"help": "temperature varies by this much: lower where the model is sure; 0 is off [>= 0]"},
    )
    dynatemp_exponent: float = field(
        default=1.0, metadata={"help": "how entropy, from 0 to 1, becomes a temperature in that range [>= 0]"}
    )
    dry_multiplier: float = field(
        default=0.0, metadata={"help": "DRY: penalty of a token that continues a repetition; 0 is off [>= 0]"}
    )
    dry_base: float = field(
        default=1.75, metadata={"help": "DRY: each further token of a repetition multiplies the penalty by this [>= 1]"}
    )
    dry_allowed_length: int = field(
        default=2, metadata={"help": "DRY: repetitions of fewer tokens than this are not penalized [>= 0]"}
    )
    dry_penalty_last_n: int = field(
        default=-1,
        metadata={"help": "DRY: how many recent tokens, prompt included, it looks at; 0 none, -1 all [>= -1]"},
    )
    dry_sequence_breakers: Iterable[str] = field(
        default=("\n", ":", '"', "*"),
        metadata={"help": "DRY: no repetition goes beyond these texts; several may be given [not empty]"},
    )
    mirostat: int = field(
        default=0,
        metadata={"help": "1 or 2: hold the surprise of tokens constant, instead of all samplers that cut [0..2]"},
    )
    mirostat_tau: float = field(default=5.0, metadata={"help": "mirostat: the surprise to hold, in bits [0..1e6]"})
    mirostat_eta: float = field(default=0.1, metadata={"help": "mirostat: how fast it corrects itself [0..1e6]"})
    adaptive_target: float = field(
        default=-1.0,
        metadata={"help": "adaptive-p: prefer tokens about this probable; below 0 is off [finite, up to 1]"},
    )
    adaptive_decay: float = field(
        default=0.9, metadata={"help": "adaptive-p: it looks back on about 1 / (1 - decay) tokens [0..0.99]"}
    )
    samplers: Iterable[str] = field(
        default=DEFAULT_SAMPLERS,
        metadata={
            "help": "the order of samplers, as names with semicolons between them; others do nothing "
            f"[{';'.join(DEFAULT_SAMPLERS)}]"
        },
    )
    seed: int | None = field(
        default=None, metadata={"help": "same seed, same tokens; without one every run differs [0..2^64-1]"}
    )
    max_tokens: int | None = field(
        default=None, metadata={"help": "generate at most this many tokens; without it, until the model ends [>= 0]"}
    )
    stop: Iterable[str] | None = field(
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
    logit_bias: Mapping[int, float] | None = field(
        default=LogitBias(),
        metadata={"help": "token id -> number added to its logit before all else; -inf bans the token [< inf]"},
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
            "typical_p": _number("typical_p", self.typical_p, 0, 1),
            "top_n_sigma": _number("top_n_sigma", self.top_n_sigma, -math.inf),
            "xtc_probability": _number("xtc_probability", self.xtc_probability, 0, 1),
            "xtc_threshold": _number("xtc_threshold", self.xtc_threshold, 0, 1),
            "min_keep": _integer("min_keep", self.min_keep, 0),
            "dynatemp_range": _number("dynatemp_range", self.dynatemp_range, 0),
            "dynatemp_exponent": _number("dynatemp_exponent", self.dynatemp_exponent, 0),
            "dry_multiplier": _number("dry_multiplier", self.dry_multiplier, 0, _PENALTY_MAX),
            "dry_base": _number("dry_base", self.dry_base, 1, 1e6),
            "dry_allowed_length": _integer("dry_allowed_length", self.dry_allowed_length, 0),
            "dry_penalty_last_n": _integer("dry_penalty_last_n", self.dry_penalty_last_n, -1),
            "dry_sequence_breakers": _texts("dry_sequence_breakers", self.dry_sequence_breakers),
            "mirostat": _integer("mirostat", self.mirostat, 0, 2),
            "mirostat_tau": _number("mirostat_tau", self.mirostat_tau, 0, 1e6),
            "mirostat_eta": _number("mirostat_eta", self.mirostat_eta, 0, 1e6),
            "adaptive_target": _number("adaptive_target", self.adaptive_target, -math.inf, 1),
            "adaptive_decay": _number("adaptive_decay", self.adaptive_decay, 0, 0.99),
            "samplers": _samplers(self.samplers),
            "seed": None if self.seed is None else _integer("seed", self.seed, 0, 2**64 - 1),
            "max_tokens": None if self.max_tokens is None else _integer("max_tokens", self.max_tokens, 0),
            "stop": () if self.stop is None else _texts("stop", self.stop),
            "repeat_penalty": _number("repeat_penalty", self.repeat_penalty, 1e-6, 1e6),
            "repeat_last_n": _integer("repeat_last_n", self.repeat_last_n, -1),
            "presence_penalty": _number("presence_penalty", self.presence_penalty, -_PENALTY_MAX, _PENALTY_MAX),
            "frequency_penalty": _number("frequency_penalty", self.frequency_penalty, -_PENALTY_MAX, _PENALTY_MAX),
            "logit_bias": LogitBias() if self.logit_bias is None else _logit_bias(self.logit_bias),
            "logprobs": None if self.logprobs is None else _integer("logprobs", self.logprobs, 0),
            "prompt_logprobs": (
                None if self.prompt_logprobs is None else _integer("prompt_logprobs", self.prompt_logprobs, 0)
            ),
        }
        for spec in fields(self):  # frozen: the normalised values replace the given ones here and nowhere else
            object.__setattr__(self, spec.name, checked[spec.name])
        if self.mirostat and self.adaptive_target >= 0:
            raise ConfigError(
                Option("mirostat"), " and ", Option("adaptive_target"), " both choose the token; use one of them"
            )


def _integer(name: str, value: object, low: int, high: int = _INT32_MAX) -> int:
    number = as_whole(value, low, high)
    if number is None:
        raise ConfigError(Option(name), f" must be an integer from {low} to {high}, got {_shown(value)}")
    return number


def _number(name: str, value: object, low: float, high: float = math.inf) -> float:
    number = as_float(value)
    if not (math.isfinite(number) and low <= number <= high):
        expected = f">= {low}" if high == math.inf else f"from {low} to {high}"
        expected = "" if -low == high == math.inf else f"<= {high}" if low == -math.inf else expected
        raise ConfigError(Option(name), f" must be a finite number{expected and ' ' + expected}, got {_shown(value)}")
    return number


def _shown(value: object) -> str:
    return repr(value) if value is not None else "None; leave it out for the default"


def _bias(token: int, value: object) -> float:
    number = as_float(value)
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


def _texts(name: str, value: object) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise ConfigError(Option(name), f" must be a text or several texts, got {value!r:.80}")
    texts = tuple(given)
    for text in texts:
        if not isinstance(text, str) or not text or not is_unicode(text):
            raise ConfigError(Option(name), f" must hold non-empty texts without lone surrogates, got {text!r:.80}")
    return texts


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _samplers(value: object) -> tuple[str, ...]:
    names = tuple(name for text in _texts("samplers", value) for name in text.split(";"))
    for place, name in enumerate(names):
        if name not in SAMPLERS:
            raise ConfigError(Option("samplers"), f" is made of {', '.join(SAMPLERS)}; got {name!r}")
        if name in names[:place]:
            raise ConfigError(Option("samplers"), f" names {name!r} twice")
    if "adaptive_p" in names[:-1]:
        raise ConfigError(Option("samplers"), " must have adaptive_p at the end, since it draws the token")
    return names
