"""Finds how a text's hidden states become its embedding, where sentence-transformers say it: modules.json.

Source: the files that sentence-transformers writes; the numbers are llama.cpp's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.source.folder import ModelFolder
from ollama_engine.errors import ModelFormatError, UnsupportedModelError

__all__ = ["POOLING", "pooling_keys"]

POOLING = {"mean": 1, "cls": 2, "lasttoken": 3}
"""Ways of sentence-transformers -> `pooling_type`."""
FLAGS = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "lasttoken"}
"""The older flags of sentence-transformers, `pooling_mode_...`."""
KNOWN = ("Transformer", "Pooling", "Normalize")
"""Modules that can follow each other here: Normalize is what `Engine.embed` does unless told otherwise."""


def pooling_keys(folder: ModelFolder) -> dict[str, int]:
    """`pooling_type` below the architecture's name; empty for a folder without modules.json.

    Raises UnsupportedModelError for modules and kinds of pooling that no GGUF file holds, ModelFormatError for files
    of another form.
    """
    file = folder.path / "modules.json"
    text = folder.text("modules.json")
    if text is None:
        return {}
    try:
        modules = json.loads(text)
        kinds = {str(module["type"]).rsplit(".", 1)[-1]: str(module["path"]) for module in modules}
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFormatError(f"{file}: not a list of modules with type and path: {error!r}") from None
    unknown = [kind for kind in kinds if kind not in KNOWN]
    if unknown:
        raise UnsupportedModelError(f"{file}: module {unknown[0]!r} is not supported; supported: {', '.join(KNOWN)}")
    if "Pooling" not in kinds:
        return {}
    config = folder.json(f"{kinds['Pooling']}/config.json")
    if config is None:
        raise ModelFormatError(f"{folder.path / kinds['Pooling'] / 'config.json'} is missing, which {file} names")
    return {"pooling_type": _type(config, str(folder.path / kinds["Pooling"] / "config.json"))}


def _type(config: Mapping[str, Any], home: str) -> int:
    flags = [name.removeprefix("pooling_mode_") for name, value in config.items()
             if name.startswith("pooling_mode_") and value is True]  # fmt: skip
    modes = [FLAGS.get(flag, flag) for flag in flags] or [str(config.get("pooling_mode"))]
    if len(modes) != 1 or modes[0] not in POOLING:
        raise UnsupportedModelError(f"{home}: pooling is {' and '.join(modes)}; supported: one of {', '.join(POOLING)}")
    return POOLING[modes[0]]
