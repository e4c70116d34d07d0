"""GGUFFacts: what the header of a model's file says of it, in the terms of Ollama's API."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ollama_engine.convert.quant.presets import PRESETS
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.store.capabilities import file_abilities, go_abilities

__all__ = ["GGUFFacts", "capabilities", "human_count", "read_facts"]

FILE_TYPES: Final = {preset.file_type: preset.name for preset in PRESETS.values()} | {
    19: "IQ2_XXS", 20: "IQ2_XS", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 31: "IQ1_M", 36: "TQ1_0", 37: "TQ2_0",
}  # fmt: skip
"""`general.file_type` -> name. Source: llama_ftype in llama.h."""


LONG_ARRAYS: Final = frozenset(f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "scores", "token_type"))
"""Keys whose arrays have an entry for each token. Decoding them takes a tenth of a second, too long for a list."""


@dataclass(frozen=True)
class GGUFFacts:
    """Facts about one GGUF file.

    Attributes:
        architecture: `general.architecture`, "" where there is none.
        file_type: "Q4_K_M" ..., "unknown" for one without a name.
        n_parameters: numbers in all tensors.
        context_length: tokens that it was trained for, and
        embedding_length: the size of its hidden state; None where the file does not say.
        metadata: all keys. Arrays are None, but whole with `arrays`.
        tensors: (name, type, shape), shapes with the fastest dimension first.
        template: the chat template, in Jinja; None where there is none.
    """

    architecture: str
    file_type: str
    n_parameters: int
    context_length: int | None
    embedding_length: int | None
    metadata: Mapping[str, Any]
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
    template: str | None


def read_facts(path: str | os.PathLike[str], *, arrays: bool = False) -> GGUFFacts:
    """Read a file's header. Raises what GGUFFile does: ModelFormatError, OSError ..."""
    with GGUFFile(path) as file:
        keys = file.metadata
        architecture = str(keys.get("general.architecture", ""))
        tensors = tuple((tensor.name, tensor.dtype, tensor.shape) for tensor in file.tensors.values())
        skipped = () if arrays else LONG_ARRAYS
        metadata = {key: None if key in skipped else _plain(keys[key], arrays=arrays) for key in keys}
    context, embedding = (metadata.get(f"{architecture}.{key}") for key in ("context_length", "embedding_length"))
    template, file_type = (metadata.get(key) for key in ("tokenizer.chat_template", "general.file_type"))
    return GGUFFacts(
        architecture=architecture,
        file_type=FILE_TYPES.get(file_type, "unknown") if isinstance(file_type, int) else "unknown",
        n_parameters=sum(math.prod(shape) for _, _, shape in tensors),
        context_length=context if isinstance(context, int) else None,
        embedding_length=embedding if isinstance(embedding, int) else None,
        metadata=metadata,
        tensors=tensors,
        template=template if isinstance(template, str) else None,
    )


def capabilities(facts: GGUFFacts, template: str | None, *, projector: bool = False) -> list[str]:
    """Capabilities of a model, out of "completion", "embedding", "vision", "tools", "insert" and "thinking".

    `template`: its Modelfile's, which decides instead of the file's; `projector`: whether images have their own file.
    """
    if f"{facts.architecture}.pooling_type" in facts.metadata:
        return ["embedding"]
    abilities = {"completion"}
    if projector or f"{facts.architecture}.vision.block_count" in facts.metadata:
        abilities.add("vision")
    abilities |= file_abilities(facts.metadata, facts.template) if template is None else go_abilities(template)
    return [name for name in ("completion", "tools", "insert", "vision", "thinking") if name in abilities]


def human_count(number: int) -> str:
    """A number of parameters, as Ollama writes it: 8.0B, 134.52M, 23K."""
    for unit, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if number >= unit:
            return f"{number / unit:.{0 if number % unit == 0 else digits}f}{letter}"
    return str(number)


def _plain(value: Any, *, arrays: bool) -> Any:
    """For JSON: arrays as lists or None, floats that JSON has no word for as None, texts without lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not arrays:
        return None
    return [_plain(item, arrays=True) for item in (value if isinstance(value, list) else value.tolist())]
