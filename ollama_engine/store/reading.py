"""A manifest and its small blobs -> StoredModel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ollama_engine.chat.message_images import is_no_path
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.store.blobs import BlobStore, damaged
from ollama_engine.store.manifest import Layer, Manifest
from ollama_engine.store.stored_model import StoredModel

__all__ = ["holds_images", "read_json", "stored_model"]

MAX_TEXT_BYTES = 16 << 20
"""More than any template, license or list of messages has; a larger blob is not read into memory."""


def stored_model(name: str, manifest: Manifest, modified: float, blobs: BlobStore) -> StoredModel:
    """Reads a stored model from its manifest and small blobs. Its large blobs are not opened.

    Raises UnsupportedModelError for a model that has no GGUF file, ModelFormatError for a damaged small blob.
    """

    def texts(*kinds: str) -> list[str]:
        return [_text(layer, blobs) for layer in manifest.of_kind(*kinds)]

    def paths(kind: str) -> list[Any]:
        return [blobs.path(layer.digest) for layer in manifest.of_kind(kind)]

    files = paths("model")
    if not files:
        raise UnsupportedModelError(f"model '{name}' has no GGUF file in it; its weights are in another format")
    projectors = [*paths("projector"), *files[1:]]  # `create` once stored a projector as a second model
    templates = texts("template", "prompt")
    parameters: dict[str, Any] = {}
    for layer in manifest.of_kind("params"):
        parameters |= _expect(dict, layer, blobs)
    messages = [message for layer in manifest.of_kind("messages") for message in _messages(layer, blobs)]
    return StoredModel(
        name=name,
        digest=manifest.digest,
        size=manifest.size,
        modified=modified,
        model_path=files[0],
        projector_path=projectors[0] if projectors else None,
        adapter_paths=tuple(paths("adapter")),
        template=templates[-1] if templates else None,
        system="\n".join(texts("system")),
        parameters=parameters,
        messages=tuple(messages),
        licenses=tuple(texts("license")),
        config=_config(manifest.config, blobs),
    )


def read_json(layer: Layer, blobs: BlobStore) -> Any:
    """Reads a JSON blob. Raises ModelFormatError, which names the digest."""
    try:
        return json.loads(_text(layer, blobs))
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"blob {layer.digest} is damaged: it is no JSON: {error}; pull it again") from None


def _expect(kind: type, layer: Layer, blobs: BlobStore) -> Any:
    value = read_json(layer, blobs)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ModelFormatError(f"blob {layer.digest} holds a {type(value).__name__}, expected a {kind.__name__}")
    return value


def _messages(layer: Layer, blobs: BlobStore) -> list[dict[str, Any]]:
    """Messages, each with a role and a text. Raises ModelFormatError for others, and for images that are not base64.

    With a path there, the author of a model could read files of this machine.
    """
    messages = []
    for message in _expect(list, layer, blobs):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ModelFormatError(f"blob {layer.digest} holds {message!r:.60}, expected a message with a role")
        content = message.get("content")
        if not isinstance(content, str | None):
            raise ModelFormatError(f"blob {layer.digest} holds a message without a text: {message!r:.60}")
        if not holds_images(message):
            raise ModelFormatError(f"blob {layer.digest} holds {message!r:.60}, whose images are not all base64")
        messages.append({**message, "content": content or ""})
    return messages


def holds_images(message: Mapping[str, Any]) -> bool:
    """Whether what a message of a model has as images is that, in base64, and not the name of a file."""
    images = message.get("images")
    return images is None or (isinstance(images, list) and all(map(is_no_path, images)))


def _config(layer: Layer, blobs: BlobStore) -> dict[str, Any]:
    found: dict[str, Any] = _expect(dict, layer, blobs) if layer.digest else {}
    return found


def _text(layer: Layer, blobs: BlobStore) -> str:
    if not blobs.has(layer):
        raise damaged(blobs, layer)
    if layer.size > MAX_TEXT_BYTES:
        raise ModelFormatError(f"blob {layer.digest}: a {layer.kind} has at most {MAX_TEXT_BYTES >> 20} MiB")
    return blobs.path(layer.digest).read_text(encoding="utf-8", errors="replace")
