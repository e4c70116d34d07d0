"""ChatTemplate: messages to segments of a prompt, as the template of a model writes them.

The text is that of transformers' `apply_chat_template`. What the template wrote itself becomes trusted text, in which
control tokens are parsed; everything else (contents, names, tools, documents) becomes text in which they are not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

from jinja2 import TemplateError, TemplateSyntaxError, meta
from jinja2.exceptions import SecurityError

from ollama_engine.chat.budget import Budget, check_source, size_of
from ollama_engine.chat.open_end import REASONING, cut_at_mark, mark_end
from ollama_engine.chat.provenance import Traced, trusted_spans
from ollama_engine.chat.sandbox import ChatEnvironment, RefusedError
from ollama_engine.errors import ChatError, EngineError
from ollama_engine.segments import Text

__all__ = ["ChatTemplate", "MessageTemplate", "text_segments"]

log = logging.getLogger(__name__)

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""Roles that may become part of a control token, such as <|user|>: names of ours, not a caller's text."""


class MessageTemplate(Hashable, Protocol):
    """A chat template, which writes a conversation as a prompt: a `ChatTemplate`, or a `GoTemplate`."""

    source: str

    def reads(self, name: str) -> bool:
        """Whether it reads a variable of that name."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = False,
        continue_final_message: bool | str = False, variables: Mapping[str, Any] | None = None,
        keep_none: bool = False,
    ) -> str:  # fmt: skip
        """The text, marked by who wrote it: see `ChatTemplate.render`."""


class ChatTemplate:
    """A jinja2 template, compiled. Immutable: threads may share it.

    Args:
        source: the template's text, from the file or the caller.
        special_tokens: variables such as `bos_token` with the texts of control tokens.
        now: the clock of templates that write a date.

    Raises ChatError for a source that is no template.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, now: Callable[[], datetime] = datetime.now
    ) -> None:
        check_source(source)
        self.source = source
        self._special_tokens = {name: Traced.whole(text) for name, text in (special_tokens or {}).items()}
        try:
            with Budget().spent():  # constants are computed now
                self._template = ChatEnvironment(now).from_string(source)
        except TemplateSyntaxError as error:
            raise ChatError(f"the chat template is not valid, line {error.lineno}: {error.message}") from None
        except SecurityError as error:
            raise ChatError(f"the chat template cannot be compiled: {error}") from None
        except (RecursionError, SyntaxError) as error:  # jinja2's parser, Python's of the code that jinja2 makes
            raise ChatError(f"the chat template cannot be compiled: {error}") from None

    def reads(self, name: str) -> bool:
        """Whether it reads a variable of that name."""
        return name in self._variables

    @cached_property
    def _variables(self) -> frozenset[str]:
        """Found at the first use: that takes as long as compiling does."""
        return frozenset(meta.find_undeclared_variables(ChatEnvironment().parse(self.source)))

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = False,
        continue_final_message: bool | str = False, variables: Mapping[str, Any] | None = None,
        keep_none: bool = False,
    ) -> str:  # fmt: skip
        """The text, marked by who wrote it.

        Args:
            messages: plain data (see `plain_data`) with the fields that the template reads.
            tools: JSON schemas of functions.
            documents: dicts with "title" and "text", for templates that read them.
            add_generation_prompt: end with the beginning of an answer.
            continue_final_message: leave the last message open, for the model to go on with; a str names the field
                that it goes on with, True means "content".
            variables: whatever else the template reads.
            keep_none: give the template fields of messages that are None. Most would write them out.

        Raises ChatError where the template refuses the messages, or fails.
        """
        prepared = [_for_template(message, keep_none=keep_none) for message in messages]
        mark, final = mark_end(prepared, continue_final_message, self.source)
        given = {**self._special_tokens, **(variables or {})}
        given |= {"messages": prepared, "tools": tools, "documents": documents}
        text = self._render({**given, "add_generation_prompt": add_generation_prompt})
        return cut_at_mark(mark, final, text) if mark else text

    def _render(self, variables: dict[str, Any]) -> str:
        try:
            with Budget(size_of(variables)).spent():
                return self._template.render(variables)
        except RefusedError as error:
            raise ChatError(f"the chat template refuses the messages: {error}") from None
        except TemplateError as error:
            raise ChatError(f"the chat template fails: {error}") from None
        except (MemoryError, EngineError):  # no memory, or the caller has given up
            raise
        except Exception as error:  # whatever operations on values of other types than it expects raise
            raise ChatError(f"the chat template cannot take these messages: {type(error).__name__}: {error}") from error


def text_segments(text: str, *, trust_contents: bool = False) -> list[Text]:
    """A rendered text as segments: control tokens are parsed in what the template wrote, or everywhere."""
    if trust_contents:
        return [Text(str.__str__(text), True)] if text else []
    segments, at = [], 0
    for begin, end in trusted_spans(text):
        if begin > at:
            segments.append(Text(_plain(text, at, begin), False))
        segments.append(Text(_plain(text, begin, end), True))
        at = end
    if at < len(text):
        segments.append(Text(_plain(text, at, len(text)), False))
    return segments


def _plain(text: str, begin: int, end: int) -> str:
    """A part of a text, without its marks. Nothing else is copied: it may be large."""
    return str.__getitem__(text, slice(begin, end))


def _for_template(message: Mapping[str, Any], *, keep_none: bool) -> dict[str, Any]:
    """Without fields that are None, as transformers leaves them out; reasoning under all of its names."""
    fields = {name: value for name, value in message.items() if keep_none or value is not None}
    if fields.get("role") in ROLES:
        fields["role"] = Traced.whole(fields["role"])
    reasoning = next((fields[name] for name in REASONING if name in fields), None)
    return fields if reasoning is None else {"thinking": reasoning, **fields, "reasoning_content": reasoning}
