"""Results of requests: chunks and completions of answers, one result of everything else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol

from ollama_engine.errors import ConfigError, Option
from ollama_engine.sample import TokenLogprobs

__all__ = [
    "NOT_WRITTEN",
    "Chunk",
    "Completion",
    "FinishReason",
    "Parsed_co",
    "Result",
    "Usage",
    "ValueReader",
    "collect",
    "merged",
    "value_of",
]

FinishReason = Literal["stop", "length"]
NOT_WRITTEN = {"exclude": True}
"""Metadata of a field that pydantic leaves out of JSON."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # typing's has no default before Python 3.13

    Parsed_co = TypeVar("Parsed_co", default=Any, covariant=True)
    """Of an answer's value: T where `format=T` is a type, else Any."""
else:
    from typing import TypeVar

    Parsed_co = TypeVar("Parsed_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and times of a request. Seconds are wall-clock time, to the microsecond.

    Attributes:
        prompt_tokens: tokens of the prompt as it was given, dropped ones included; of a text that no context of num_ctx
            tokens could hold without what was cut before it was tokenized.
        completion_tokens: sampled tokens, without the one that ended the generation.
        cached_tokens: prompt tokens whose keys and values were in the cache already.
        queue_seconds: time in the queue, waiting for the engine.
        prompt_seconds: time from the start of the prompt to the first sampled token.
        completion_seconds: time from the first sampled token to the end.
        dropped_prompt_tokens: tokens cut from a prompt longer than num_ctx (`on_overflow` "truncate" and "shift").
        shifted_tokens: tokens of prompt and answer dropped from the context during the answer (`on_overflow` "shift").
        preemptions: how often the request gave up its cells to an older one and was computed again.
        discarded_tokens: tokens sampled for candidates of `best_of` not returned; counted in the best one's usage.
        prepare_seconds: time before the queue: a chat's template, tokens and images, in the caller's thread.
        drafted_tokens: tokens that were guessed and computed beside those of the answer (speculative decoding).
        accepted_tokens: those of them that were right: so many steps fewer.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_seconds: float
    prompt_seconds: float
    completion_seconds: float
    dropped_prompt_tokens: int = 0
    shifted_tokens: int = 0
    preemptions: int = 0
    discarded_tokens: int = 0
    prepare_seconds: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class ValueReader(Protocol):
    """Reads the value of an answer that was asked for in a format."""

    @property
    def cut(self) -> str | None:
        """Why the answer is not whole; None where it is."""

    def read(self, text: str, tokens: Sequence[int] | None) -> object:
        """The value. `tokens`: of the text; None where the text is not all that they say.

        Raises IncompleteError where the answer was cut off.
        """

    if not TYPE_CHECKING:

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            """Has pydantic take results as fields, and FastAPI as what a function returns: it knows no protocols."""
            return handler(Any)


def value_of(reader: ValueReader | None, text: str, tokens: Sequence[int] | None = None) -> Any:
    """The value of an answer. Raises ConfigError where no format was asked for, and what the reader raises."""
    if reader is None:
        raise ConfigError("the answer has no parsed value: it was asked for without ", Option("format"))
    return reader.read(text, tokens)


@dataclass(slots=True)  # there is one for each token, and a frozen one takes four times as long to make
class Chunk:
    """One piece of a streamed completion. The last has `finish_reason` and `usage`.

    Attributes:
        text: the text that can be shown now. It may come later than its tokens: characters and stop texts that are not
            complete yet are held back.
        tokens: token ids sampled since the chunk before.
        logprobs: one entry for each of `tokens`, when asked for.
        finish_reason: "stop": the model ended, or a stop text appeared. "length": max_tokens or num_ctx is reached.
        usage: tokens counted and seconds taken.
        prompt_logprobs: in the first chunk; see `Completion`.
        reader: in the last chunk, reads the answer's value where a `format` was asked for; not for callers.
        prompt_token_ids: in the first chunk; see `Completion`.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    reader: ValueReader | None = field(default=None, repr=False, compare=False, metadata=NOT_WRITTEN)
    prompt_token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Completion(Generic[Parsed_co]):
    """A whole answer.

    Attributes:
        text: the answer without control tokens, cut before the stop text that ended it.
        tokens: all sampled tokens but the one that ended the generation; those of a stop text are included.
        finish_reason: "stop": the model ended, or a stop text appeared. "length": max_tokens or num_ctx is reached.
        usage: tokens counted and seconds taken.
        logprobs: one entry for each of `tokens`, when `SamplingParams.logprobs` asked for them.
        prompt_logprobs: one entry for each token of the prompt (as far as `on_overflow` has kept it), when
            `SamplingParams.prompt_logprobs` asked for them. The first is None, for it follows nothing; so are those of
            images.
        cumulative_logprob: the sum of the log-probabilities of `tokens`, where they were asked for or `best_of` needed
            them. The token that ended the generation does not count.
        reader: reads `parsed`; not for callers.
        prompt_token_ids: those of the prompt as it was given, without its images, when the option of that name
            asked for them.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprobs, ...] | None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    cumulative_logprob: float | None = None
    reader: ValueReader | None = field(default=None, repr=False, compare=False, metadata=NOT_WRITTEN)
    prompt_token_ids: tuple[int, ...] | None = None

    @property
    def parsed(self) -> Parsed_co:
        """The value of an answer in a `format`: an instance of the type that was given, what the JSON says, or text.

        It is read anew each time. Raises IncompleteError for an answer that was cut off by max_tokens, num_ctx or a
        stop text, and ConfigError where no format was asked for; what the type's own validators raise.
        """
        value: Parsed_co = value_of(self.reader, self.text, self.tokens)
        return value


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a request that has no chunks: logits, or embeddings."""

    value: object


def merged(chunks: Sequence[Chunk]) -> Chunk:
    """Neighbouring chunks of one answer, in their order, as one."""
    first, last = chunks[0], chunks[-1]
    logprobs = [entry for chunk in chunks for entry in chunk.logprobs or ()]
    return Chunk(
        "".join([chunk.text for chunk in chunks]),
        tuple([token for chunk in chunks for token in chunk.tokens]),
        tuple(logprobs) if any(chunk.logprobs is not None for chunk in chunks) else None,
        last.finish_reason,
        last.usage,
        first.prompt_logprobs,
        last.reader,
        first.prompt_token_ids,
    )


def collect(chunks: list[Chunk]) -> Completion:
    """The completion that these chunks, the last one included, make up."""
    last = chunks[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    parts = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    logprobs = tuple(entry for part in parts for entry in part) if parts else None
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        tokens=tuple(token for chunk in chunks for token in chunk.tokens),
        finish_reason=last.finish_reason,
        usage=last.usage,
        logprobs=logprobs,
        prompt_logprobs=chunks[0].prompt_logprobs,
        cumulative_logprob=None if logprobs is None else math.fsum(entry.logprob for entry in logprobs),
        reader=last.reader,
        prompt_token_ids=chunks[0].prompt_token_ids,
    )
