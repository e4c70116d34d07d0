"""Whether a store is sound: manifests that cannot be read, blobs that are missing or damaged, what is left over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ollama_engine.cli.tables import number_of
from ollama_engine.errors import EngineError
from ollama_engine.size_texts import decimal_size

if TYPE_CHECKING:
    from ollama_engine.store.model_store import ModelStore

__all__ = ["Health", "store_health"]


@dataclass(frozen=True)
class Health:
    """State of a model store.

    Attributes:
        folder: of the store.
        models: how many there are.
        size: bytes of all blobs that they use.
        problems: what is wrong, each in a sentence.
        leftovers: bytes of blobs that no model uses and of interrupted downloads.
        verified: whether all blobs were read.
    """

    folder: str
    models: int
    size: int
    problems: tuple[str, ...]
    leftovers: int
    verified: bool

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "folder": self.folder, "models": self.models, "size": self.size, "problems": list(self.problems),
            "leftovers": self.leftovers, "verified": self.verified,
        }  # fmt: skip

    def text(self) -> str:
        """The report as text for people."""
        lines = [f"store {self.folder}: {number_of(self.models, 'model')}, {decimal_size(self.size)}"]
        lines += [f"  {problem}" for problem in self.problems]
        if not self.problems:
            lines.append("  all blobs are whole" if self.verified else "  no blob is missing; --verify reads them all")
        if self.leftovers:
            lines.append(f"  {decimal_size(self.leftovers)} are unused; ollama-engine rm --unused frees them")
        return "\n".join(lines)


def store_health(store: ModelStore, *, verify: bool, progress: Callable[[int, int], None]) -> Health:
    """Look at all files of a store. `verify`: read the blobs, and tell `progress` how far that is."""
    problems = [f"{path} is no manifest: {why}" for path, why in store.broken()]
    entries = store.entries()
    layers = {layer.digest: layer for entry in entries for layer in entry.manifest.blobs}
    users: dict[str, list[str]] = {}
    for entry in entries:
        for layer in entry.manifest.blobs:
            users.setdefault(layer.digest, []).append(entry.name.short)
    total, before = sum(layer.size for layer in layers.values()), 0
    for layer in layers.values():
        try:
            if verify:
                store.blobs.check(layer, lambda done, _, before=before: progress(before + done, total))  # type: ignore[misc]
            elif not store.blobs.has(layer):
                store.blobs.check(layer)
        except (EngineError, OSError) as error:
            problems.append(f"{error} (of {', '.join(users[layer.digest])})")
        before += layer.size
    progress(total, total)
    left = [*store.unused(), *store.blobs.leftovers()]
    return Health(
        str(store.folder),
        len(entries),
        total,
        tuple(problems),
        sum(path.stat().st_blocks * 512 for path in left),
        verify,
    )
