"""Single parts of a stored model, which `ollama-engine show` prints for the flags of Ollama's program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ollama_engine.store.showing import facts_of, modelfile, parameter_lines

if TYPE_CHECKING:
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["PARTS", "part_of"]

PARTS = {
    "license": "print the licenses",
    "modelfile": "print the Modelfile",
    "parameters": "print the parameters",
    "system": "print the system message",
    "template": "print the template: the Modelfile's, else the file's own",
}


def part_of(stored: StoredModel, part: str) -> str:
    """One of PARTS, without the line break at its end; "" where the model has none. Raises what `facts_of` does."""
    texts: dict[str, Callable[[], str]] = {
        "license": lambda: "\n\n".join(stored.licenses),
        "modelfile": lambda: modelfile(stored),
        "parameters": lambda: parameter_lines(stored),
        "system": lambda: stored.system,
        "template": lambda: (facts_of(stored).template or "") if stored.template is None else stored.template,
    }
    return texts[part]().removesuffix("\n")
