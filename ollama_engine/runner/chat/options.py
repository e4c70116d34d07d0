"""ChatOptions: what a conversation may say beside its messages; defaults and checks stated once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import TYPE_CHECKING, Any, TypedDict, cast

from ollama_engine.chat.thinking import Think
from ollama_engine.errors import ConfigError, Option, Phrase
from ollama_engine.option_names import unknown_option
from ollama_engine.runner.request.answer_options import SAMPLING, AnswerBesideFormat, answer_options
from ollama_engine.runner.request.options import RequestOptions, options_elsewhere
from ollama_engine.sample import SamplingParams
from ollama_engine.sample.constraints.formats import Format

if TYPE_CHECKING:
    from ollama_engine.chat.go_template import GoTemplate

__all__ = ["ChatBesideFormat", "ChatKeywords", "ChatOptions", "TemplateKeywords", "split_keywords"]

_ELSEWHERE = {
    "generate(engine.apply_template(messages), {}=...)": ["n", "best_of"],
    'a message: {{"role": "user", "content": ..., "{}": [...]}}': ["images"],
}
"""A chat has one answer; its images are in its messages."""


OWN_VARIABLES: dict[str, Phrase] = {
    "messages": "pass them as the first argument",
    "tools": ("pass ", Option("tools")),
    "documents": ("pass ", Option("documents")),
    "add_generation_prompt": "pass it to apply_template",
}
"""Variables of templates that are no `template_variables`, and how to set them."""


class TemplateKeywords(TypedDict, total=False):
    """Keyword arguments of all that applies a chat template.

    Attributes:
        tools: functions that the model may call: with JSON schemas of their parameters, as OpenAI's API takes them, or
            Python functions, whose signatures and docstrings say so. They are not called here: an answer names the
            function and its arguments.
        documents: dicts with "title" and "text", for templates that read them.
        template: source of a chat template (Jinja), the name of one in the model's file, or a `GoTemplate`; None
            (default) takes "tool_use" for tools where the file has it, else the default one.
        think: whether the model reasons before it answers (True, False), or how much ("low", "medium", "high"); None
            (default) leaves it to the template. Of a list or tuple of these the first is taken that the template has a
            switch for. Raises ChatError where it has none.
        continue_final_message: the last message is the beginning of the answer, and the model goes on with it. A str
            names the field to go on with ("reasoning_content").
        template_variables: whatever else the template reads.
        trust_contents: parse control tokens in contents, names, tools and documents too. Only where none of them comes
            from somebody else (default False).
        drop_messages: leave out the oldest turns that num_ctx has no room for: questions with their answers, then calls
            of tools with their results. System messages, the last question and the last message stay. The answer says
            how many messages are gone (default False: `on_overflow` alone decides).
    """

    tools: Sequence[Any] | None
    documents: Sequence[Mapping[str, Any]] | None
    template: str | GoTemplate | None
    think: Think
    continue_final_message: bool | str
    template_variables: Mapping[str, Any] | None
    trust_contents: bool
    drop_messages: bool


class ChatBesideFormat(TemplateKeywords, AnswerBesideFormat, total=False):
    """Those of `ChatKeywords` but `format`, which tells type checkers what the value of the answer is."""

    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool | None
    dialect: str | None
    context: Sequence[int] | None


class ChatKeywords(ChatBesideFormat, total=False):
    """Keyword arguments of a chat: those of templates, requests (`RequestKeywords`) and `SamplingParams`, and these.

    Attributes:
        tool_choice: "auto" (default): the model may call tools. "required": it has to. A tool's name, or OpenAI's
            {"type": "function", "function": {"name": ...}}: it has to call that one. "none": tools are left out of the
            prompt. A grammar forces the call, and arguments follow the schemas.
        parallel_tool_calls: whether several calls may come where one is forced (default: not where a tool is named).
        dialect: how the model writes tool calls and reasoning, where its template does not tell.
        context: token ids that stand before the conversation: the prompt and answer of an earlier one (default none).
    """

    format: Format | None


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Checked `ChatKeywords`, without those of every request. Raises ConfigError for values of other types."""

    tools: Sequence[Any] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    template: str | GoTemplate | None = None
    think: Think = None
    continue_final_message: bool | str = False
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    trust_contents: bool = False
    drop_messages: bool = False
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool | None = None
    dialect: str | None = None
    context: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.continue_final_message), (bool, str)):
            given = self.continue_final_message
            raise ConfigError(Option("continue_final_message"), f" is True, False or a field's name, got {given!r}")
        if not isinstance(cast(object, self.trust_contents), bool):
            raise ConfigError(Option("trust_contents"), f" is True or False, got {self.trust_contents!r}")
        if not isinstance(cast(object, self.drop_messages), bool):
            raise ConfigError(Option("drop_messages"), f" is True or False, got {self.drop_messages!r}")
        if not isinstance(cast(object, self.parallel_tool_calls), (bool, NoneType)):
            raise ConfigError(Option("parallel_tool_calls"), f" is True or False, got {self.parallel_tool_calls!r}")
        if not _named(self.tool_choice):
            raise ConfigError(Option("tool_choice"), ' is "auto", "none", "required", or names one of the tools')
        if self.forces_call and not self.tools:
            raise ConfigError(Option("tool_choice"), f" is {self.tool_choice!r}, but there are no tools")
        if not isinstance(cast(object, self.template_variables), Mapping):
            raise ConfigError(Option("template_variables"), f" is a dict, got {self.template_variables!r:.60}")
        for name, instead in OWN_VARIABLES.items():
            if name in self.template_variables:
                raise ConfigError(
                    Option("template_variables"), f" has {name!r}, which the chat sets itself", advice=[instead]
                )

    @property
    def several_calls(self) -> bool:
        """Whether several calls may come. Who names a tool wants it called: a small model might go on calling it."""
        return self.named_tool is None if self.parallel_tool_calls is None else self.parallel_tool_calls

    @property
    def named_tool(self) -> str | None:
        """The tool that has to be called; None where any may be, or none has to. A dict always names a tool."""
        keyword = isinstance(self.tool_choice, str) and self.tool_choice in ("auto", "none", "required")
        return None if keyword else _named(self.tool_choice)

    @property
    def forces_call(self) -> bool:
        """Whether a tool has to be called."""
        return self.named_tool is not None or self.tool_choice == "required"

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> ChatOptions:
        """Options from keyword arguments; an unknown one raises UnknownOptionError."""
        known = [option.name for option in fields(cls)]
        for name in keywords:
            if name not in known:
                raise unknown_option("a chat", name, known)
        return cls(**{name: value for name, value in keywords.items() if value is not None})


def _named(choice: object) -> str | None:
    """The name in a `tool_choice`, or the keyword; None where there is none."""
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        choice = function.get("name") if isinstance(function, Mapping) else None
    return choice if isinstance(choice, str) and choice else None


def split_keywords(
    params: SamplingParams | None, keywords: Mapping[str, Any], default: SamplingParams
) -> tuple[ChatOptions, SamplingParams, RequestOptions]:
    """Options of the chat, of sampling and of the request; an unknown one raises UnknownOptionError."""
    own = [option.name for option in fields(ChatOptions)]
    chat = {name: value for name, value in keywords.items() if name in own}
    rest = {name: value for name, value in keywords.items() if name not in own}
    request = [option.name for option in fields(RequestOptions)]
    for name in rest:
        if name not in request and name not in SAMPLING:
            fields_of = (SamplingParams.__name__, SAMPLING)
            raise unknown_option("a chat", name, [*own, *request], options_elsewhere() | _ELSEWHERE, fields_of)
    return ChatOptions.of(chat), *answer_options(params, rest, default)
