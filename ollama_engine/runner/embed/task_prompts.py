"""TaskPrompts: what a text is for. Embedders expect a text that says so before it, or have adapters; files name both.

sentence-transformers call such texts prompts; our converter takes them from config_sentence_transformers.json.
"""

from __future__ import annotations

from typing import NamedTuple

from ollama_engine.errors import ConfigError, ModelFormatError, Option
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.runner.request.prompts import Prompt, is_segments
from ollama_engine.segments import Text

__all__ = ["Purpose", "TaskPrompts", "prefixed"]


class Purpose(NamedTuple):
    """The text that comes before each of a call, and the number of its adapter, 0 for none."""

    prompt: str | None = ""
    """None where the caller wants none, whatever the file has."""
    adapter: int = 0


class TaskPrompts:
    """The prompts and adapters of a file by their names."""

    def __init__(self, metadata: Metadata) -> None:
        """Raises ModelFormatError for lists that do not belong together."""
        names, texts = metadata.list("prompt.names", []), metadata.list("prompt.texts", [])
        if len(names) != len(texts) or not all(isinstance(text, str) for text in [*names, *texts]):
            raise ModelFormatError(f"{metadata.key('prompt.names')} and prompt.texts are not texts in pairs")
        self._texts: dict[str, str] = dict(zip(names, texts, strict=True))
        self._default = metadata.str("prompt.default", "")
        self._tasks = metadata.list("adapter.tasks", [])

    def purpose(self, prompt_name: str | None, task: str | None) -> Purpose:
        """What these arguments of `Engine.embed` say. Raises ConfigError for names that the file does not have."""
        if task is not None and task not in self._tasks:
            has = f"this model has {', '.join(self._tasks)}" if self._tasks else "this model has no adapters"
            raise ConfigError(Option("task"), f" is {task!r}, but {has}")
        if prompt_name is None and task in self._texts:
            prompt_name = task
        prompt = None if prompt_name == "" else self._text(prompt_name)
        return Purpose(prompt, 0 if task is None else 1 + self._tasks.index(task))

    def _text(self, name: str | None) -> str:
        chosen = self._default if name is None else name
        if chosen in ("", *self._texts):
            return self._texts.get(chosen, "")
        has = f"this model has {', '.join(self._texts)}" if self._texts else "this model's file has no prompts"
        raise ConfigError(Option("prompt_name"), f" is {chosen!r}, but {has}")


def prefixed(prompt: str | None, text: Prompt) -> Prompt:
    """A text to embed with a prompt before it. Token ids are taken as they are."""
    if not prompt:
        return text
    if isinstance(text, str):
        return prompt + text
    return [Text(prompt), *text] if is_segments(text) else text
