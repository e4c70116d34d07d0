"""ModelBase: the part of a served model that needs no engine: its stored model, facts and template."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ollama_engine.chat.go_template import GoTemplate

if TYPE_CHECKING:
    from ollama_engine.server.served import ModelFacts
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["ModelBase"]


class ModelBase:
    """`stored` and `facts` of `ServedModel`."""

    def __init__(self, stored: StoredModel, facts: ModelFacts) -> None:
        self._stored = stored
        self._facts = facts
        self._template = None if stored.template is None else GoTemplate(stored.template)

    @property
    def stored(self) -> StoredModel:
        return self._stored

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    def _with_template(self, options: dict[str, Any]) -> dict[str, Any]:
        """The stored model's template stands above the GGUF file's, and a request's above both."""
        return options if self._template is None or options.get("template") else {**options, "template": self._template}
