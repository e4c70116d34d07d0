"""StoredModel: what is known of a model before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["StoredModel"]


@dataclass(frozen=True)
class StoredModel:
    """A model that can be loaded: one of the store, or a GGUF file.

    Attributes:
        name: as lists show it ("llama3.2:latest"), or what the caller calls a file.
        digest: SHA-256 of the manifest, 64 hexadecimal digits; of a plain file of its path, size and time.
        size: bytes of all its files.
        modified: seconds since 1970.
        model_path: its GGUF file.
        projector_path: the part that reads images, where it is a file of its own.
        adapter_paths: adapters (LoRA), not applied yet: loading such a model is refused.
        template: its prompt template in Go's syntax, which stands above the GGUF file's; None where it has none.
        system: the system message where a conversation has none; "" for none.
        parameters: options of its Modelfile, which stand below those of a request ("temperature", "stop" ...).
        messages: the beginning of every conversation, dicts with "role" and "content".
        licenses: texts.
        config: Ollama's ConfigV2 ("model_family", "file_type" ...); {} for plain files.
    """

    name: str
    digest: str
    size: int
    modified: float
    model_path: Path
    projector_path: Path | None = None
    adapter_paths: tuple[Path, ...] = ()
    template: str | None = None
    system: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] = ()
    licenses: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
