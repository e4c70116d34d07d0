"""Stores as Ollama leaves them on disk, written here without the package's own code."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ollama_engine.store import ModelStore

DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.ollama.image."

CONFIG_V2 = {
    "model_format": "gguf", "model_family": "llama", "model_families": ["llama"], "model_type": "1.2B",
    "file_type": "Q8_0", "architecture": "amd64", "os": "linux",
    "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "0" * 64]},
}  # fmt: skip


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_blobs(store: ModelStore) -> None:
    """Every manifest can be read, and every blob is there and is what its name says."""
    assert store.broken() == []
    for entry in store.entries():
        for layer in entry.manifest.blobs:
            store.blobs.check(layer)
    for blob in store.blobs.all():
        assert blob.name == f"sha256-{sha256(blob.read_bytes())}"


def put_blob(root: Path, data: bytes) -> dict[str, Any]:
    """Write a blob; the digest and size of a descriptor."""
    digest = sha256(data)
    path = root / "blobs" / f"sha256-{digest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def put_model(
    root: Path,
    name: str,
    layers: list[tuple[str, bytes]],
    config: dict[str, Any] | None = None,
    *,
    modified: float | None = None,
) -> str:
    """Write a model: its blobs and, below `manifests`, the file `name` ("host/namespace/model/tag"). Its digest."""
    made = {"mediaType": CONFIG, **put_blob(root, json.dumps(CONFIG_V2 if config is None else config).encode())}
    manifest = {
        "schemaVersion": 2,
        "mediaType": DOCKER,
        "config": made,
        "layers": [{"mediaType": LAYER + kind, **put_blob(root, data)} for kind, data in layers],
    }
    path = root / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(manifest).encode()
    path.write_bytes(data)
    if modified is not None:
        os.utime(path, (modified, modified))
    return sha256(data)


def files(root: Path) -> set[str]:
    """All files below a folder, but locks and claims."""
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(path) for path in found if path.parts[0] not in (".locks", ".claims")}
