"""answered: many prompts through an engine, in order, with as many under way as it computes and some that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ollama_engine.chat.tool_schemas import read_tools
from ollama_engine.errors import ConfigError, EngineBusyError, EngineError, Option
from ollama_engine.runner.bulk.answer import BatchAnswer, prompt_digest
from ollama_engine.runner.bulk.checkpoint import Checkpoint
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from ollama_engine.runner.request.request import Request

__all__ = ["Answering", "Checkpoint", "OnError", "answered", "check_prompts", "is_chat", "job_of", "resumed"]

OnError = Literal["raise", "keep"]

AHEAD = 4
"""Requests handed in for each that is computed at a time: answers come in order, so short ones wait for a long one."""


class AnsweringEngine(Protocol):
    """The methods of an Engine that are used here."""

    def submit(self, prompt: Any, params: SamplingParams, **options: Any) -> Request: ...

    def chat_stream(self, messages: Any, params: SamplingParams, **options: Any) -> Any: ...


@dataclass(frozen=True)
class Answering:
    """How prompts are answered.

    Attributes:
        engine: the engine that answers.
        parallel: requests that it computes side by side.
        params: how tokens are chosen.
        options: keyword arguments of each request.
        on_error: whether a prompt that the model cannot take ends everything, or becomes an answer with an `error`.
    """

    engine: AnsweringEngine
    parallel: int
    params: SamplingParams
    options: Mapping[str, Any]
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "keep"):
            raise ConfigError(Option("on_error"), f' is "raise" or "keep", got {self.on_error!r}')


def check_prompts(prompts: object) -> None:
    """Raise ConfigError for what is no iterable of prompts, or is one prompt."""
    came = "the messages of one chat" if is_chat(prompts) else type(prompts).__name__
    iterable = hasattr(prompts, "__iter__") or hasattr(prompts, "__getitem__")
    if is_chat(prompts) or isinstance(prompts, (str, bytes, Mapping)) or not iterable:
        raise ConfigError(Option("prompts"), f" are a list or another iterable of prompts, got {came}",
                          advice=["put a single prompt into a list"])  # fmt: skip


def answered(how: Answering, prompts: Iterable[tuple[int | str, Any]]) -> Generator[BatchAnswer, None, None]:
    """The answers to prompts, each with its key, in order. Prompts are taken as they are needed.

    Closing this cancels the requests that are under way.
    """
    pending: deque[_Pending] = deque()
    try:
        for key, prompt in prompts:
            while len(pending) >= AHEAD * how.parallel:
                yield pending.popleft().answer()
            while (begun := _begun(how, key, prompt, first=not pending)) is None:
                yield pending.popleft().answer()
            pending.append(begun)
        while pending:
            yield pending.popleft().answer()
    finally:
        for request in pending:
            request.cancel()


class _Pending:
    """A request that is under way, or the answer of one that was refused."""

    def __init__(
        self, how: Answering, key: int | str, wait: Callable[[], BatchAnswer], cancel: Callable[[], None]
    ) -> None:
        self._how, self._key, self._wait, self.cancel = how, key, wait, cancel

    def answer(self) -> BatchAnswer:
        """Wait for the answer. Raises what is no fault of the prompt, and what is unless errors are kept."""
        try:
            return self._wait()
        except EngineError as error:
            return _kept(self._how, self._key, error)


def _begun(how: Answering, key: int | str, prompt: Any, *, first: bool) -> _Pending | None:
    """A request; None where the engine's queue is full, and an answer of ours has to be waited for."""
    try:
        if is_chat(prompt):
            stream = how.engine.chat_stream(prompt, how.params, **how.options)

            def wait_for_chat() -> BatchAnswer:
                found = stream.result()
                return BatchAnswer.of(key, found.content, found.finish_reason, found.usage)

            return _Pending(how, key, wait_for_chat, stream.close)
        request = how.engine.submit(prompt, how.params, **how.options)
    except EngineBusyError:
        if first:
            raise
        return None
    except EngineError as error:
        refused = _kept(how, key, error)
        return _Pending(how, key, lambda: refused, lambda: None)

    def wait() -> BatchAnswer:
        found = request.result()
        return BatchAnswer.of(key, found.text, found.finish_reason, found.usage)

    return _Pending(how, key, wait, request.cancel)


def _kept(how: Answering, key: int | str, error: EngineError) -> BatchAnswer:
    """The answer that says what is wrong with a prompt. Raises the error where it is no fault of the prompt's."""
    if how.on_error == "raise" or not 400 <= error.http_status < 500:
        raise error.behind(f"prompt {key}: ") from error
    return BatchAnswer.refused(key, error)


def is_chat(prompt: Any) -> bool:
    """Whether it is a conversation: a list of messages, which have a role."""
    if not isinstance(prompt, (list, tuple)) or not prompt:
        return False
    first = prompt[0]
    return "role" in first if isinstance(first, Mapping) else hasattr(first, "role")


def resumed(how: Answering, prompts: Iterable[Any], checkpoint: Checkpoint) -> Generator[BatchAnswer, None, None]:
    """The answers to prompts: first those of the checkpoint, then new ones, which it keeps before they are returned.

    Closes the checkpoint at the end. Raises ConfigError where it is of other prompts.
    """
    with checkpoint, closing(_resumed(how, prompts, checkpoint)) as answers:
        yield from answers


def _resumed(how: Answering, prompts: Iterable[Any], checkpoint: Checkpoint) -> Generator[BatchAnswer, None, None]:
    coming = iter(enumerate(prompts))
    for answer, digest in checkpoint.answers():
        number, prompt = next(coming, (None, None))
        if number is None or answer.key != number or prompt_digest(prompt) != digest:
            raise ConfigError(
                Option("checkpoint"), f" {str(checkpoint.path)!r} has answers to other prompts: that with number "
                f"{answer.key} is another, or missing", advice=["pass the same prompts", "name a new file"],
            )  # fmt: skip
        yield answer
    digests: deque[str] = deque()

    def noted() -> Iterator[tuple[int, Any]]:
        for number, prompt in coming:
            digests.append(prompt_digest(prompt))
            yield number, prompt

    for answer in answered(how, noted()):
        checkpoint.add(answer, digests.popleft())
        yield answer


def job_of(model: str, how: Answering) -> str:
    """Everything that answers depend on besides their prompts, as text: model, params and options."""
    options = {name: value for name, value in sorted(how.options.items()) if name not in ("timeout", "priority")}
    if options.get("tools"):  # the text of a Python function would be its address
        options["tools"] = read_tools(options["tools"])
    return f"{model}, {how.params!r}" + (f", {options!r}" if options else "")
