"""TaskPrompts: texts that say what a text is for, which embedders expect before it; named in the model's file.

sentence-transformers call them prompts; our converter takes them from config_sentence_transformers.json.
"""

from __future__ import annotations

from ollama_engine.errors import ConfigError, ModelFormatError, Option
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.runner.request.prompts import Prompt, is_segments
from ollama_engine.segments import Text

__all__ = ["TaskPrompts", "prefixed"]


class TaskPrompts:
    """The prompts of a file by their names."""

    def __init__(self, metadata: Metadata) -> None:
        """Raises ModelFormatError for lists that do not belong together."""
        names, texts = metadata.list("prompt.names", []), metadata.list("prompt.texts", [])
        if len(names) != len(texts) or not all(isinstance(text, str) for text in [*names, *texts]):
            raise ModelFormatError(f"{metadata.key('prompt.names')} and prompt.texts are not texts in pairs")
        self._texts: dict[str, str] = dict(zip(names, texts, strict=True))
        self._default = metadata.str("prompt.default", "")

    def text(self, name: str | None) -> str:
        """The prompt of this name; of the file's default for None, and none for "". Raises ConfigError."""
        chosen = self._default if name is None else name
        if chosen in ("", *self._texts):
            return self._texts.get(chosen, "")
        has = f"this model has {', '.join(self._texts)}" if self._texts else "this model's file has no prompts"
        raise ConfigError(Option("prompt_name"), f" is {chosen!r}, but {has}")


def prefixed(prompt: str, text: Prompt) -> Prompt:
    """A text to embed with a prompt before it. Token ids are taken as they are."""
    if not prompt:
        return text
    if isinstance(text, str):
        return prompt + text
    return [Text(prompt), *text] if is_segments(text) else text
