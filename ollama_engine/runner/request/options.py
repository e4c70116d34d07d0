"""RequestOptions: how a request is served, apart from how its tokens are chosen; defaults and ranges stated once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from ollama_engine.config import PYTHON_ONLY, Drafting, EngineConfig, as_float
from ollama_engine.errors import ConfigError, Option
from ollama_engine.option_names import unknown_option
from ollama_engine.runner.request.reasoning import ReasoningBudget
from ollama_engine.sample import SamplingParams
from ollama_engine.sample.constraints.formats import Format, ValueOrCalls

__all__ = [
    "LogitsProcessor", "OnOverflow", "RequestBesideFormat", "RequestKeywords", "RequestOptions", "options_elsewhere",
    "whole",
]  # fmt: skip

OnOverflow = Literal["error", "truncate", "shift"]

if TYPE_CHECKING:
    from ollama_engine.input import FloatArray, Int32Array

    LogitsProcessor = Callable[[Int32Array, FloatArray], Any]
    """(token ids, logits) -> None, or other logits; see `RequestKeywords.logits_processors`."""
else:
    LogitsProcessor = Callable  # a command's help is there before numpy is

_IN_PARAMS = "SamplingParams({}=...)"
_BESIDE_PROMPT = "a call with a prompt, as in generate(prompt, {}=[...])"
_SAMPLING = [option.name for option in fields(SamplingParams)]
_ELSEWHERE = {
    "Engine.generate(prompt, {}=...)": ["n", "best_of"],
    "Engine(model, {}=...)": [option.name for option in fields(EngineConfig)],
    _BESIDE_PROMPT: ["images"],
    "a chat, as in chat(messages, {}=...)": ["tools", "tool_choice", "parallel_tool_calls", "think", "template"],
}


class RequestBesideFormat(TypedDict, total=False):
    """Those of `RequestKeywords` but `format`, which tells type checkers what the value of the answer is."""

    on_overflow: OnOverflow
    truncate_prompt: bool
    num_keep: int
    priority: int
    timeout: float | None
    cache: bool
    cache_salt: str | None
    prompt_token_ids: bool
    logits_processors: Sequence[LogitsProcessor] | None
    reasoning_budget: int | ReasoningBudget | None
    draft: Drafting | None


class RequestKeywords(RequestBesideFormat, total=False):
    """Keyword arguments that every way to ask for an answer takes, beside those of `SamplingParams`.

    Attributes:
        on_overflow: policy when num_ctx tokens are reached. "error" (default): a longer prompt raises
            ContextOverflowError, and one as long that is to have an answer; an answer ends with finish_reason "length".
            "truncate": a prompt that does not fit so keeps its first `num_keep` tokens and the newest of the rest. It
            leaves room for max_tokens, up to half of the context (a quarter without max_tokens). The answer ends as
            before. "shift": a longer prompt is cut to num_ctx, and the answer goes on: the oldest half of the tokens
            not kept leaves the context, as often as needed. `Usage` says how many tokens were dropped.
        truncate_prompt: whether "truncate" and "shift" may cut the prompt (default True); a longer one raises
            ContextOverflowError otherwise, as with "error".
        num_keep: tokens at the beginning of the prompt that are never dropped (default 0).
        priority: higher is served first (default 0); nobody starves.
        timeout: seconds from submission after which the request ends with DeadlineError (default None: never).
        cache: whether the request may reuse what earlier ones computed and leave its own for later ones (default True).
        cache_salt: requests share prefixes with those of the same salt only, for instance one for each user, so that
            nobody can tell by the time an answer takes what others have asked (default None: one for all).
        format: the answer's form: "json" for any JSON object, a JSON schema (a dict, or its text), a pydantic
            model, dataclass, TypedDict or other type, or one of Regex, Choice, Lark and GBNF (default None: any).
            `Completion.parsed` has its value. A GrammarError names the part that cannot be compiled.
        logits_processors: functions that change the logits before a token is chosen (default, and None: none). Each is
            called with the token ids of prompt and answer so far (int32 [n], read-only) and the logits of the next
            token (float32 [n_vocab]), which it changes in place, returning None, or replaces by what it returns.
            They are called in their order before penalties and all other sampling; a constraint's mask is applied to
            what they leave, and log-probabilities stay those of the model. The engine's thread calls them between two
            steps, so all requests wait for a slow one. An exception of one ends its request with a SamplingError, whose
            cause it is.
        prompt_token_ids: whether the answer says which tokens its prompt has, see `Completion` (default False).
        reasoning_budget: tokens that a model may reason for before it is made to answer (default None: any number). A
            number stands for reasoning between the markers of the chat's dialect, or <think> and </think> elsewhere; a
            `ReasoningBudget` names others.
        draft: how tokens are guessed that a step verifies beside the next one; the answer stays the same (default None:
            as the engine is told to).
    """

    format: Format | None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Checked `RequestKeywords`. Raises ConfigError for values out of range."""

    on_overflow: OnOverflow = field(
        default="error",
        metadata={
            "help": "when num_ctx tokens are reached: error refuses a longer prompt, truncate cuts it, shift cuts it "
            "and goes on with the answer, without the oldest tokens"
        },
    )
    num_keep: int = field(
        default=0, metadata={"help": "tokens at the beginning of the prompt that are never dropped [>= 0]"}
    )
    priority: int = field(default=0, metadata={"help": "higher is served first; nobody starves [-2^31..2^31]"})
    timeout: float | None = field(
        default=None,
        metadata={"help": "seconds until the request ends with an error; by default it may take any [> 0]"},
    )
    cache: bool = field(
        default=True, metadata={"help": "reuse what earlier requests computed, and leave its own for later ones"}
    )
    cache_salt: str | None = field(
        default=None, metadata={"help": "share what is computed with requests of the same salt only"}
    )
    prompt_token_ids: bool = field(default=False, metadata={PYTHON_ONLY: True})
    truncate_prompt: bool = field(default=True, metadata={PYTHON_ONLY: True})
    logits_processors: Sequence[LogitsProcessor] | None = field(default=(), metadata={PYTHON_ONLY: True})
    reasoning_budget: int | ReasoningBudget | None = field(
        default=None, metadata={"help": "tokens that the model may reason for before it is made to answer [>= 0]"}
    )
    draft: Drafting | None = field(
        default=None,
        metadata={PYTHON_ONLY: True},
    )
    format: Format | ValueOrCalls | None = field(
        default=None, metadata={"help": "the answer's form: json for any JSON object, or a JSON schema"}
    )

    def __post_init__(self) -> None:
        if self.on_overflow not in get_args(OnOverflow):
            raise ConfigError(
                Option("on_overflow"), f" is one of {', '.join(get_args(OnOverflow))}, got {self.on_overflow!r}"
            )
        if not isinstance(self.truncate_prompt, bool):
            raise ConfigError(Option("truncate_prompt"), f" is True or False, got {self.truncate_prompt!r}")
        object.__setattr__(self, "num_keep", whole("num_keep", self.num_keep, 0, 1 << 24))
        object.__setattr__(self, "priority", whole("priority", self.priority, -(1 << 31), 1 << 31))
        if self.timeout is not None and not _is_seconds(self.timeout):
            raise ConfigError(Option("timeout"), f" is a number of seconds above 0, or None, got {self.timeout!r}")
        if not isinstance(self.cache, bool):
            raise ConfigError(Option("cache"), f" is True or False, got {self.cache!r}")
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise ConfigError(Option("cache_salt"), f" is a str or None, got {self.cache_salt!r}")
        if not isinstance(self.prompt_token_ids, bool):
            raise ConfigError(Option("prompt_token_ids"), f" is True or False, got {self.prompt_token_ids!r}")
        if self.draft is not None and self.draft not in get_args(Drafting):
            raise ConfigError(
                Option("draft"), f" is one of {', '.join(get_args(Drafting))}, or None, got {self.draft!r}"
            )
        object.__setattr__(self, "logits_processors", _processors(self.logits_processors))
        if self.reasoning_budget is not None and not isinstance(self.reasoning_budget, ReasoningBudget):
            ReasoningBudget(self.reasoning_budget)  # raises

    @classmethod
    def of(cls, options: RequestKeywords) -> RequestOptions:
        """Options from keyword arguments; an unknown one raises UnknownOptionError, which is a TypeError."""
        return cls().replaced(options)

    def replaced(self, options: RequestKeywords) -> RequestOptions:
        """The same, but for those that are given. Raises as `of` does."""
        known = [option.name for option in fields(self)]
        for name in options:
            if name not in known:
                raise unknown_option("a request", name, known, _ELSEWHERE, (SamplingParams.__name__, _SAMPLING))
        values: dict[str, Any] = dict(options)
        return replace(self, **values)


def options_elsewhere() -> dict[str, list[str]]:
    """Options that an Engine does not take, but calls of it do: {how they are written: their names}."""
    return {
        _IN_PARAMS: _SAMPLING,
        "generate(prompt, {}=...)": [option.name for option in fields(RequestOptions)],
    }


def whole(name: str, value: object, low: int, high: int) -> int:
    """A whole number of any type as an int. Raises ConfigError for anything else, and out of range."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # anything may come; it raises
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise ConfigError(Option(name), f" is a whole number from {low} to {high}, got {value!r}")
    return number


def _processors(value: object) -> tuple[LogitsProcessor, ...]:
    value = () if value is None else value
    if not isinstance(value, (list, tuple)) or not all(map(callable, value)):
        raise ConfigError(
            Option("logits_processors"), f" is a list of functions of token ids and logits, got {value!r:.80}"
        )
    return tuple(value)


def _is_seconds(value: object) -> bool:
    return 0 < as_float(value) < math.inf
