"""Reads what sentence-transformers do with a model's hidden states: modules.json, and the folders that it names.

Source: the files that sentence-transformers writes; numbers and names of keys are llama.cpp's where it has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.source.checkpoint import open_checkpoint
from ollama_engine.convert.source.folder import ModelFolder
from ollama_engine.convert.source.tensors import StoredTensor
from ollama_engine.errors import ModelFormatError, UnsupportedModelError

__all__ = ["POOLING", "SentenceModules"]

POOLING = {"mean": 1, "cls": 2, "lasttoken": 3}
"""Ways of sentence-transformers -> `pooling_type`."""
FLAGS = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "lasttoken"}
"""The older flags of sentence-transformers, `pooling_mode_...`."""
KNOWN = ("Transformer", "Pooling", "Dense", "Normalize", "LogitScore")
"""Modules that can follow each other here: Normalize is what `Engine.embed` does unless told otherwise, and LogitScore
what rerankers do whose converter keeps the answers' rows."""
FIRST_DENSE = 2
"""llama.cpp's number of the first dense layer, that of its folder in EmbeddingGemma: 2_Dense."""


class SentenceModules:
    """The modules of a folder; none in a folder without modules.json.

    Raises UnsupportedModelError for modules, kinds of pooling and activations that no GGUF file holds, ModelFormatError
    for files of another form.
    """

    def __init__(self, folder: ModelFolder) -> None:
        self._folder = folder
        modules = _modules(folder)
        self.keys: dict[str, Any] = {**_prompts(folder)} if modules else {}
        """Below the architecture's name."""
        self.values: dict[str, Any] = {}
        """Sizes of dense layers, as if config.json had them."""
        self.tensors: dict[str, StoredTensor] = {}
        """The weights of dense layers: dense_2.linear.weight."""
        n_dense = 0
        for kind, path in modules:
            if kind == "Pooling":
                self.keys["pooling_type"] = _type(*self._config(path))
            if kind == "Dense":
                self._add_dense(f"dense_{FIRST_DENSE + n_dense}", path)
                n_dense += 1

    def _add_dense(self, name: str, path: str) -> None:
        config, home = self._config(path)
        activation = str(config.get("activation_function")).rsplit(".", 1)[-1]
        if activation != "Identity":
            raise UnsupportedModelError(f"{home}: activation_function is {activation}; supported: Identity")
        for key in ("in", "out"):
            self.values[f"{name}_feat_{key}"] = config.get(f"{key}_features")
        stored = open_checkpoint(ModelFolder(self._folder.path / path))
        self.tensors |= {f"{name}.{tensor}": weights for tensor, weights in stored.items()}

    def _config(self, path: str) -> tuple[Mapping[str, Any], str]:
        file = self._folder.path / path / "config.json"
        config = self._folder.json(f"{path}/config.json")
        if config is None:
            raise ModelFormatError(f"{file} is missing, which {self._folder.path / 'modules.json'} names")
        return config, str(file)


def _modules(folder: ModelFolder) -> list[tuple[str, str]]:
    """Kind and path of each module."""
    file = folder.path / "modules.json"
    text = folder.text("modules.json")
    if text is None:
        return []
    try:
        modules = [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in json.loads(text)]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFormatError(f"{file}: not a list of modules with type and path: {error!r}") from None
    unknown = [kind for kind, _ in modules if kind not in KNOWN]
    if unknown:
        raise UnsupportedModelError(f"{file}: module {unknown[0]!r} is not supported; supported: {', '.join(KNOWN)}")
    return modules


def _type(config: Mapping[str, Any], home: str) -> int:
    flags = [name.removeprefix("pooling_mode_") for name, value in config.items()
             if name.startswith("pooling_mode_") and value is True]  # fmt: skip
    modes = [FLAGS.get(flag, flag) for flag in flags] or [str(config.get("pooling_mode"))]
    if len(modes) != 1 or modes[0] not in POOLING:
        raise UnsupportedModelError(f"{home}: pooling is {' and '.join(modes)}; supported: one of {', '.join(POOLING)}")
    return POOLING[modes[0]]


def _prompts(folder: ModelFolder) -> dict[str, Any]:
    """The texts that say what a text is for, by their names; no other engine has keys for them."""
    name = "config_sentence_transformers.json"
    config = folder.json(name) or {}
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise ModelFormatError(f"{folder.path / name}: prompts is not an object of texts")
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelFormatError(f"{folder.path / name}: default_prompt_name is {default!r}, which prompts does not have")
    keys = {"prompt.names": list(prompts), "prompt.texts": list(prompts.values())} if prompts else {}
    return keys if default is None else {**keys, "prompt.default": default}
