"""ModelTemplates: the chat templates of a model, and which of them a call takes."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.chat.template import ChatTemplate, MessageTemplate
from ollama_engine.errors import ChatError, Option

__all__ = ["ModelTemplates"]

DEFAULT, TOOL_USE = "default", "tool_use"


class ModelTemplates:
    """Templates by name; each is compiled when it is first taken.

    sources: by name.
    special_tokens: variables such as `bos_token`, with the texts of control tokens.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self.sources = dict(sources)
        self._special_tokens = special_tokens
        self._compiled: dict[str, ChatTemplate] = {}
        self._compiling = threading.Lock()

    def choose(self, template: str | GoTemplate | None = None, *, with_tools: bool = False) -> MessageTemplate:
        """The template of that name or source; None takes "tool_use" for tools where there is one, else the default.

        Raises ChatError where there is none, and for a source that is no template.
        """
        if template is None:
            wanted = TOOL_USE if with_tools and TOOL_USE in self.sources else DEFAULT
            if wanted not in self.sources:
                raise ChatError(self._none_found(), advice=[("pass one with ", Option("template"))])
            return self._compile(self.sources[wanted])
        if isinstance(template, GoTemplate):
            return template
        if not isinstance(template, str):
            raise ChatError(
                Option("template"),
                f" is a GoTemplate, or the source or the name of a chat template, got {type(template).__name__}",
            )
        if template not in self.sources and "{" not in template:
            named = ", ".join(sorted(self.sources)) or "none"
            raise ChatError(
                Option("template"), f" is the source of a template, or a name from the model's file ({named}), got "
                f"{template!r:.60}"
            )  # fmt: skip
        return self._compile(self.sources.get(template, template))

    def _none_found(self) -> str:
        if self.sources:
            return f"the model's file has chat templates ({', '.join(sorted(self.sources))}), but no default one"
        return "the model's file has no chat template, and none of those known here fits its vocabulary"

    def _compile(self, source: str) -> ChatTemplate:
        with self._compiling:
            template = self._compiled.get(source)
            if template is None:
                template = ChatTemplate(source, self._special_tokens)
                if len(self._compiled) >= len(self.sources) + 8:  # sources that callers pass
                    self._compiled.clear()
                self._compiled[source] = template
            return template
