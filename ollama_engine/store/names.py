"""ModelName: `host/namespace/model:tag`, as Ollama writes the names of models."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ollama_engine.errors import ConfigError, Option

__all__ = ["ModelName"]

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_MODEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
EXAMPLES = "a name such as llama3.2, user/model:tag or hf.co/user/repository"
_DEFAULTS = ("registry.ollama.ai", "library", "latest")


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model's name in all its parts. Two names are the same model where they differ in case only.

    Attributes:
        host: of the registry, with its port.
        namespace: who published it.
        model: what it is called.
        tag: which variant.
    """

    host: str
    namespace: str
    model: str
    tag: str

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """The name that a text means; what it leaves out is `registry.ollama.ai/library/...:latest`.

        Raises ConfigError for what is no name, such as one with "..", an empty part, or more than three slashes.
        """
        rest = text.strip()
        scheme, mark, behind = rest.partition("://")
        rest = behind if mark else scheme
        parts = rest.split("/")
        *above, last = parts
        model, _, tag = last.partition(":")
        host, namespace, default_tag = _DEFAULTS
        if len(above) == 2:
            host, namespace = above
        elif len(above) == 1:
            namespace = above[0]
        name = cls(host, namespace, model, tag if ":" in last else default_tag)
        if len(above) > 2 or not name._is_valid():
            raise ConfigError(Option("model"), f" is {EXAMPLES}, got {text!r:.120}")
        return name

    @classmethod
    def of_parts(cls, host: str, namespace: str, model: str, tag: str) -> ModelName:
        """The name with these parts. Raises ConfigError where one is not valid."""
        name = cls(host, namespace, model, tag)
        if not name._is_valid():
            raise ConfigError(Option("model"), f" is a name such as user/model:tag, got {str(name)!r:.120}")
        return name

    def _is_valid(self) -> bool:
        patterns = zip(
            (_HOST, _NAMESPACE, _MODEL, _MODEL), (self.host, self.namespace, self.model, self.tag), strict=True
        )
        return all(pattern.fullmatch(part) for pattern, part in patterns)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The same for all ways to write this name."""
        return (self.host.lower(), self.namespace.lower(), self.model.lower(), self.tag.lower())

    @property
    def short(self) -> str:
        """The name without those parts that are Ollama's defaults, but always with its tag."""
        host, namespace, _ = _DEFAULTS
        shown = [self.model]
        if self.namespace.lower() != namespace or self.host.lower() != host:
            shown.insert(0, self.namespace)
        if self.host.lower() != host:
            shown.insert(0, self.host)
        return f"{'/'.join(shown)}:{self.tag}"

    def __str__(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"
