"""ModelSource: the files that a caller's `model` means, and what the store knows of a model that is its own."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError
from ollama_engine.home_path import at_home
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.sample import SamplingParams
from ollama_engine.store.lookup import FoundModel, find_model, how_to_get
from ollama_engine.store.parameters import own_parameters

if TYPE_CHECKING:
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["NO_DEFAULTS", "ModelDefaults", "ModelSource"]

_AS_USUAL = SamplingParams()
SAMPLING = [option.name for option in fields(SamplingParams)]


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """Defaults of a model of the store, from its Modelfile: they stand below what a call says.

    Attributes:
        params: how tokens are chosen.
        template: its chat template in Go's syntax, which stands above the file's; None where it has none.
        system: the system message where a conversation has none; "" for none.
        messages: the beginning of every conversation.
    """

    params: SamplingParams = _AS_USUAL
    template: str | None = None
    system: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, stored: StoredModel) -> ModelDefaults:
        """Raises ConfigError, which names the model, for parameters out of range."""
        try:
            params = SamplingParams(**own_parameters(stored.parameters, SAMPLING))
        except ConfigError as error:
            raise error.behind(f"the Modelfile of {stored.name}: ") from None
        return cls(params, stored.template, stored.system, stored.messages)


NO_DEFAULTS = ModelDefaults()


class ModelSource(NamedTuple):
    """A model to load.

    Attributes:
        path: its GGUF file.
        projector: the part that reads images, where that is a file of its own.
        config: the options, with num_ctx as the Modelfile has it where the caller says nothing.
        defaults: those of its calls.
    """

    path: str
    projector: str | os.PathLike[str] | None
    config: EngineConfig
    defaults: ModelDefaults

    @classmethod
    def of(cls, model: object, projector: str | os.PathLike[str] | None, config: EngineConfig) -> ModelSource:
        """Raises ConfigError for what is no path or name, FileNotFoundError, and what reading the store raises."""
        named = FoundModel(model.path) if isinstance(model, GGUFFile) else _found(model)
        if projector is not None:
            projector = path_of(projector, "a projector")
        if named.stored is None:
            return cls(named.path, projector, config, NO_DEFAULTS)
        given = own_parameters(named.stored.parameters, ["num_ctx"])
        if config.num_ctx is None and given:
            config = replace(config, **given)
        return cls(named.path, projector or named.stored.projector_path, config, ModelDefaults.of(named.stored))


def _found(model: object) -> FoundModel:
    path = path_of(model, "a model")
    if not isinstance(model, str):
        return FoundModel(path)  # a Path is no name
    stored = find_model(path)
    if stored is None:
        if hint := how_to_get(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT) + hint, path)
        return FoundModel(path)  # opening it says what is wrong
    return stored


def path_of(given: object, what: str) -> str:
    """The path as a str; `~` is the user's home, unless there is a file of that very name.

    Raises ConfigError for what is no path, and for a name that no file can have.
    """
    if not isinstance(given, (str, bytes, os.PathLike)):
        raise ConfigError(f"{what} is the path of a GGUF file, got {type(given).__name__}: {given!r:.80}")
    path = os.fsdecode(given)
    try:
        no_file = b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        no_file = True
    if no_file:
        raise ConfigError(f"{what} is the path of a GGUF file, and no file has the name {path!r:.80}")
    return at_home(path)
