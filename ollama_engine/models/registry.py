"""`general.architecture` -> model class, imported on first use.

Built-in models are rows of `ollama_engine.architectures`. Other packages add theirs through the entry point group
`ollama_engine.models`: an entry has the name of the `general.architecture` and points to a class.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from ollama_engine.architectures import ARCHITECTURES
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.models.base import Model

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINTS = "ollama_engine.models"

_BUILT_IN = {row.name: f"ollama_engine.models.{row.model}" for row in ARCHITECTURES if row.model is not None}
_NOT_RUN = {row.name: row.not_run for row in ARCHITECTURES if row.model is None}


def architectures() -> tuple[str, ...]:
    """Names of all architectures that can be run, those of other packages included."""
    return tuple(sorted({*_BUILT_IN, *(entry.name for entry in _of_others())}))


def model_class(architecture: str) -> type[Model]:
    """The class for `general.architecture`. Raises UnsupportedModelError that lists the known ones."""
    target = _BUILT_IN.get(architecture)
    if target is not None:
        module, name = target.split(":")
        return cast("type[Model]", getattr(import_module(module), name))
    for entry in _of_others():
        if entry.name == architecture:
            loaded: Any = entry.load()
            return cast("type[Model]", loaded)
    if architecture == "clip":
        raise UnsupportedModelError(
            "it is the vision part of a model (an \"mmproj\" file, of architecture 'clip'), and no model by itself; "
            "load the file of the text model, and this one as its projector (--mmproj at the command line)"
        )
    if architecture in _NOT_RUN:
        raise UnsupportedModelError(f"architecture {architecture!r} cannot be run: {_NOT_RUN[architecture]}")
    raise UnsupportedModelError(
        f"architecture {architecture!r} is not supported; supported: {', '.join(architectures())}"
    )


def ties_output(model: type[Model]) -> bool:
    """Whether models of this class compute their output with the embeddings of tokens, where a file has no output."""
    return getattr(getattr(model, "output", None), "alt", None) == "token_embd"


def _of_others() -> EntryPoints:
    """Models of other packages. Slow to import and to search, so only called for names that are not built in."""
    from importlib.metadata import entry_points  # noqa: PLC0415 (see above)

    return entry_points(group=ENTRY_POINTS)
