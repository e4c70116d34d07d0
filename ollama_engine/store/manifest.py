"""Manifest: the file that says of which blobs a model is made: Docker's schema 2, with Ollama's media types."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from ollama_engine.errors import ModelFormatError

__all__ = ["CONFIG_TYPE", "LAYER_TYPE", "MANIFEST_TYPE", "Layer", "Manifest", "hex_of"]

MANIFEST_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE: Final = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE: Final = "application/vnd.ollama.image."
"""Begin of every layer's media type; what follows is its kind: model, projector, adapter, template, system ..."""

MAX_BYTES: Final = 4 << 20
"""A manifest has a few hundred bytes; those of models with a layer for each tensor some hundred thousand."""

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")


def hex_of(digest: str) -> str:
    """The 64 hexadecimal digits of `sha256:...` (or `sha256-...`). Raises ModelFormatError for anything else."""
    match = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if match is None:
        raise ModelFormatError(f"a digest is sha256: and 64 hexadecimal digits, got {digest!r:.100}")
    return match[1].lower()


@dataclass(frozen=True, slots=True)
class Layer:
    """A blob's place in a model.

    Attributes:
        media_type: what it is.
        digest: `sha256:` and 64 hexadecimal digits.
        size: bytes.
        more: what else the manifest says of it ("from", "name").
    """

    media_type: str
    digest: str
    size: int
    more: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        """The layer's kind: "model", "template" ...; "" for one that is not Ollama's, such as the config."""
        kind = self.media_type.partition(";")[0]
        return kind.removeprefix(LAYER_TYPE) if kind.startswith(LAYER_TYPE) else ""

    @classmethod
    def of(cls, kind: str, digest: str, size: int) -> Layer:
        """A layer of one of Ollama's kinds."""
        return cls(LAYER_TYPE + kind, digest, size)

    def as_json(self) -> dict[str, Any]:
        """The layer as JSON of a manifest."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size, **(self.more or {})}


@dataclass(frozen=True)
class Manifest:
    """A model's manifest: the blobs that it consists of.

    Attributes:
        config: the blob with Ollama's ConfigV2.
        layers: all others, in the manifest's order.
        data: the file's bytes, of which `digest` is the hash.
    """

    config: Layer
    layers: tuple[Layer, ...]
    data: bytes

    @classmethod
    def parse(cls, data: bytes) -> Manifest:
        """Raises ModelFormatError for what is no manifest."""
        try:
            found = json.loads(data)
            layers = tuple(_layer(entry) for entry in found["layers"] or ())
            config = _layer(found["config"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelFormatError(f"this is no manifest of a model: {type(error).__name__}: {error}") from None
        return cls(config, layers, data)

    @classmethod
    def of(cls, config: Layer, layers: tuple[Layer, ...]) -> Manifest:
        """A new one."""
        written = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config.as_json(),
            "layers": [layer.as_json() for layer in layers],
        }
        return cls(config, layers, json.dumps(written, separators=(",", ":")).encode())

    @property
    def digest(self) -> str:
        """SHA-256 of the file, 64 hexadecimal digits: Ollama's id of the model."""
        return sha256(self.data).hexdigest()

    @property
    def blobs(self) -> tuple[Layer, ...]:
        """All layers and the config, each digest once. A manifest without a config (digest "") has none there."""
        found = {layer.digest: layer for layer in (*self.layers, self.config) if layer.digest}
        return tuple(found.values())

    @property
    def size(self) -> int:
        """Bytes of all blobs."""
        return sum(layer.size for layer in self.blobs)

    def of_kind(self, *kinds: str) -> Iterator[Layer]:
        """The layers of these kinds, in order."""
        return (layer for layer in self.layers if layer.kind in kinds)


def _layer(entry: Mapping[str, Any]) -> Layer:
    digest, size = entry["digest"], entry["size"]
    if digest:
        digest = f"sha256:{hex_of(digest)}"
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ModelFormatError(f"a layer's size is a count of bytes, got {size!r:.40}")
    more = {key: value for key, value in entry.items() if key not in ("mediaType", "digest", "size")}
    return Layer(str(entry.get("mediaType", "")), digest, size, more or None)
