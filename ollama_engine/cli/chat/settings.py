"""Settings: the options of a conversation, as /set shows and changes them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any

from ollama_engine.cli.errors import Flags, describe
from ollama_engine.cli.options import OptionField, options_of
from ollama_engine.config import EngineConfig
from ollama_engine.errors import EngineError
from ollama_engine.errors import Option as Named
from ollama_engine.option_names import meant
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.sample import SamplingParams

__all__ = ["Settings", "Write", "set_here"]

Write = Callable[[Named], str | None]
"""How an option is typed; None where there is none."""


def set_here(flags: Flags, skip: Collection[str] = ()) -> Write:
    """How options are typed in a conversation: /set changes them, all but those of `skip` and the engine's."""
    names = {option.name for cls in (SamplingParams, RequestOptions) for option in options_of(cls, skip)}

    def write(option: Named) -> str | None:
        if option.name not in names:
            return flags(option)
        return option.name if option.value is None else f"/set {option.name} {option.value}"

    return write


class Settings:
    """Sampling and request options. `skip` names those that cannot be set here; `write` is by `set_here`."""

    def __init__(
        self, params: SamplingParams, request_options: RequestOptions, write: Write, skip: Collection[str] = ()
    ) -> None:
        self.params = params
        self.request_options = request_options
        self.write = write
        self._sampling = {option.name: option for option in options_of(SamplingParams, skip)}
        self._options = {**self._sampling, **{option.name: option for option in options_of(RequestOptions, skip)}}

    def __str__(self) -> str:
        """A line for each option."""
        return "\n".join(f"  {name:18} {getattr(self._holder(name), name)!r}" for name in self._options)

    def set(self, text: str) -> str:
        """Change an option: "NAME VALUE", or "NAME" for its default. Returns what to tell the user."""
        name, _, value = text.partition(" ")
        option = self._options.get(name.replace("-", "_"))
        if option is None:
            return f"error: {self._no_option(name.replace('-', '_'))}"
        try:
            self._change(option.name, _value(option, value.strip()) if value.strip() else option.default)
        except EngineError as error:
            return f"error: {describe(error, self.write)}"
        except ValueError:
            return f"error: {option.name} takes {option.expected}, got {value.strip()!r}"
        return f"{option.name} is {getattr(self._holder(option.name), option.name)!r}"

    def _no_option(self, name: str) -> str:
        if name in (option.name for option in fields(EngineConfig)):
            return f"{name} is fixed when the model is loaded; start with --{name.replace('_', '-')}"
        near = meant(name, list(self._options))
        return f"there is no option {name}; " + (f"did you mean {near}?" if near else "/set lists them")

    def _holder(self, name: str) -> SamplingParams | RequestOptions:
        return self.params if name in self._sampling else self.request_options

    def _change(self, name: str, value: Any) -> None:
        if name in self._sampling:
            self.params = replace(self.params, **{name: value})
        else:
            self.request_options = replace(self.request_options, **{name: value})


def _value(option: OptionField, text: str) -> Any:
    """Raises ValueError. A text is taken whole; of a mapping, pairs are separated by spaces."""
    if option.mapping:
        return dict(map(option.parse, text.split()))
    return option.parse(text)
