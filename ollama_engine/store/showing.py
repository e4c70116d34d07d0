"""Facts of a stored model for /api/show and `ollama-engine show`: details, parameters and Modelfile as texts."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ollama_engine.errors import EngineError
from ollama_engine.store.gguf_facts import GGUFFacts, capabilities, human_count, read_facts
from ollama_engine.store.modelfile import Command, Modelfile, print_modelfile
from ollama_engine.store.stored_model import StoredModel

__all__ = ["details", "facts_of", "model_capabilities", "modelfile", "parameter_lines", "short_facts"]

PARAMETER_COLUMN = 30


def short_facts(stored: StoredModel) -> GGUFFacts | None:
    """Facts about a model's file without its arrays, kept for as long as it stays the same; None for a broken one."""
    try:
        return facts_of(stored)
    except (EngineError, OSError):
        return None


def facts_of(stored: StoredModel) -> GGUFFacts:
    """Facts about a model's file without its arrays. Raises what `read_facts` does."""
    known = stored.model_path.stat()
    return _read(stored.model_path, known.st_size, known.st_mtime_ns)


@lru_cache(maxsize=256)
def _read(path: Path, size: int, changed: int) -> GGUFFacts:
    return read_facts(path)


def details(stored: StoredModel, facts: GGUFFacts | None) -> dict[str, Any]:
    """Ollama's `details`. Fields that the config lacks are read from the file's header, `facts`."""
    config = stored.config
    family = config.get("model_family") or (facts.architecture if facts else "")
    shown = {
        "parent_model": "",
        "format": config.get("model_format") or "gguf",
        "family": family,
        "families": config.get("model_families") or [family],
        "parameter_size": config.get("model_type") or (human_count(facts.n_parameters) if facts else ""),
        "quantization_level": config.get("file_type") or (facts.file_type if facts else ""),
    }
    for key in ("context_length", "embedding_length"):
        value = config.get(key) or getattr(facts, key, None)
        if value:
            shown[key] = value
    return shown


def model_capabilities(stored: StoredModel, facts: GGUFFacts) -> list[str]:
    """Capabilities of a stored model: "completion", "tools" ..."""
    return capabilities(facts, stored.template, projector=stored.projector_path is not None)


def parameter_lines(stored: StoredModel) -> str:
    """A parameter on each line, its name in a column of 30; each entry of a list has a line of its own."""
    return "\n".join(
        f"{name:<{PARAMETER_COLUMN}} {json.dumps(value, ensure_ascii=False)}"
        for name, values in stored.parameters.items()
        for value in (values if isinstance(values, list) else [values])
    )


def modelfile(stored: StoredModel) -> str:
    """A Modelfile that makes this model again."""
    commands = [Command("FROM", str(stored.model_path))]
    if stored.projector_path is not None:
        commands.append(Command("FROM", str(stored.projector_path)))
    commands += [Command("ADAPTER", str(path)) for path in stored.adapter_paths]
    if stored.template is not None:
        commands.append(Command("TEMPLATE", stored.template))
    if stored.system:
        commands.append(Command("SYSTEM", stored.system))
    for kind in ("renderer", "parser", "requires"):
        if stored.config.get(kind):
            commands.append(Command(kind.upper(), str(stored.config[kind])))
    for name, values in stored.parameters.items():
        for value in values if isinstance(values, list) else [values]:
            commands.append(Command("PARAMETER", _text(value), name))
    commands += [
        Command("MESSAGE", str(message.get("content", "")), str(message.get("role", "user")))
        for message in stored.messages
    ]
    commands += [Command("LICENSE", text) for text in stored.licenses]
    note = f"# The Modelfile of {stored.name}. To build on it by its name, begin with:\n# FROM {stored.name}\n\n"
    return note + print_modelfile(Modelfile(tuple(commands)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
