"""GoTemplate: messages to a prompt, as a Modelfile's TEMPLATE writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from ollama_engine.chat.budget import check_source
from ollama_engine.chat.go_template.evaluator import Evaluator
from ollama_engine.chat.go_template.functions import FUNCTIONS, LAZY, date_functions
from ollama_engine.chat.go_template.identifiers import identifiers, up_to_response
from ollama_engine.chat.go_template.nodes import Action, Field, Pipe, PipeCommand
from ollama_engine.chat.go_template.parser import ParsedTemplate, parse
from ollama_engine.chat.go_template.records import collated, system_text, tool_records
from ollama_engine.chat.go_template.values import TemplateRecord
from ollama_engine.chat.open_end import cut_at_mark, mark_end
from ollama_engine.chat.provenance import Traced, joined
from ollama_engine.errors import ChatError

__all__ = ["GoTemplate"]

RESPONSE = Action(Pipe((PipeCommand((Field(("Response",)),)),)), 0)


class GoTemplate:
    """A template in the syntax of Go's text/template, with the variables and functions that Ollama gives it.

    Every chat method takes one as `template=`. What it writes itself is trusted, and what callers pass is not, as in
    `ChatTemplate`; the text is Ollama's. One without `.Messages` writes one exchange (`.System`, `.Prompt`,
    `.Response`), and is written once for each.

    Args:
        source: the template.
        now: the clock of templates that write a date.

    Raises ChatError for a source that is no template, with its line.
    """

    def __init__(self, source: str, now: Callable[[], datetime] = datetime.now) -> None:
        if not isinstance(source, str):
            raise ChatError(f"a template's source is a text, got {type(source).__name__}")
        check_source(source)
        self.source = source
        self._functions = {**FUNCTIONS, **date_functions(now)}
        self._parsed = parse(source, lambda name: name in self._functions or name in LAZY)
        if not {"messages", "response"} & {name.lower() for name in self._names}:
            self._parsed.body += (RESPONSE,)

    def reads(self, name: str) -> bool:
        """Whether a variable or field of that name stands in it."""
        return name in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(identifiers(self._parsed))

    @cached_property
    def _by_messages(self) -> bool:
        return any(name.lower() == "messages" for name in self._names)

    @cached_property
    def _open_end(self) -> ParsedTemplate:
        """The template up to its first `.Response`: what stands before an answer."""
        return ParsedTemplate(up_to_response(self._parsed.body), self._parsed.defined)

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = False,
        continue_final_message: bool | str = False, variables: Mapping[str, Any] | None = None,
        keep_none: bool = False,
    ) -> str:  # fmt: skip
        """The text, marked by who wrote it; arguments and errors as `ChatTemplate.render`.

        Go templates end with the beginning of an answer by themselves: `add_generation_prompt` and `keep_none` change
        nothing. They have no place for `documents`, which raise ChatError.
        """
        if documents:
            raise ChatError("a Go template has no place for documents")
        copies = [dict(message) for message in messages]
        mark, final = mark_end(copies, continue_final_message, "content thinking reasoning_content reasoning")
        given = variables or {}
        switches = {"Think": False, "ThinkLevel": "", "IsThinkSet": "Think" in given or "ThinkLevel" in given}
        read = collated(copies)
        if self._by_messages:
            data = {**switches, **given, "System": system_text(read), "Messages": read, "Response": ""}
            data["Tools"] = tool_records(tools) if tools else None
            text = self._written(self._parsed, data)
        else:
            text = self._exchanges(read, {**switches, **given})
        return cut_at_mark(mark, final, text) if mark else text

    def fill_in(self, prompt: str, suffix: str) -> str:
        """The text that asks for what stands between two others. Raises ChatError where it has no `.Suffix`."""
        if not self.reads("Suffix"):
            raise ChatError("the template has no place for a suffix")
        switches = {"Think": False, "ThinkLevel": "", "IsThinkSet": False}
        return self._written(self._parsed, {"Prompt": prompt, "Suffix": suffix, "Response": "", **switches})

    def _exchanges(self, messages: Sequence[TemplateRecord], variables: Mapping[str, Any]) -> str:
        """One exchange after the other; the last one up to where the answer begins, or goes on."""
        parts: list[str] = []
        now = _Exchange()
        for message in messages:
            role = str(message["Role"])
            if (role == "system" and (now.prompt or now.response)) or (role == "user" and now.response):
                parts.append(self._written(self._parsed, now.data(variables)))
                now = _Exchange()
            if role == "system":
                now.system = message["Content"]
            elif role == "user":
                now.prompt = message["Content"]
            elif role == "assistant":
                now.response = message["Content"]
        return joined([*parts, self._written(self._open_end, now.data(variables))])

    def _written(self, parsed: ParsedTemplate, data: Mapping[str, Any]) -> str:
        text = Evaluator(parsed, self._functions, data).text()
        return text if isinstance(text, Traced) else Traced(text)

    def __repr__(self) -> str:
        return f"GoTemplate({self.source!r:.60})"


@dataclass(slots=True)
class _Exchange:
    system: str = ""
    prompt: str = ""
    response: str = field(default="")

    def data(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        return {**variables, "System": self.system, "Prompt": self.prompt, "Response": self.response}
