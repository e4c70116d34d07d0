"""Finds the chat template of a model, wherever its version of transformers puts it."""

from __future__ import annotations

import json
from typing import Any

from ollama_engine.convert.source.folder import ModelFolder
from ollama_engine.errors import ModelFormatError

__all__ = ["chat_templates"]


def chat_templates(folder: ModelFolder) -> dict[str, str]:
    """Templates by name; the one that counts when none is asked for is "default". Empty where there is none.

    Files of their own come before what tokenizer_config.json says, as in transformers. Raises ModelFormatError for
    templates that are no text.
    """
    templates: dict[str, str] = {}
    config = folder.json("tokenizer_config.json") or {}
    for source in (config.get("chat_template"), (folder.json("chat_template.json") or {}).get("chat_template")):
        templates |= _named(source, folder)
    main = folder.text("chat_template.jinja")
    if main is not None:
        templates["default"] = main
    for file in sorted((folder.path / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8")
    return templates


def _named(source: Any, folder: ModelFolder) -> dict[str, str]:
    """A template, or a list of {"name": ..., "template": ...}."""
    if source is None:
        return {}
    if isinstance(source, str):
        return {"default": source}
    try:
        named = {str(entry["name"]): entry["template"] for entry in source}
    except (KeyError, TypeError):
        named = {"": None}
    if not all(isinstance(template, str) for template in named.values()):
        raise ModelFormatError(f"{folder.path}: chat_template is {json.dumps(source):.100}, expected text")
    return named
