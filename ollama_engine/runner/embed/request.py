"""EmbeddingRequest: one call for embeddings or scores inside the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import ClassVar

from ollama_engine.errors import EngineError
from ollama_engine.input import MediaItem
from ollama_engine.runner.embed.pooling import FloatArray
from ollama_engine.runner.embed.results import Results
from ollama_engine.runner.embed.tokenized_text import TokenizedText
from ollama_engine.runner.request.prompts import numbered
from ollama_engine.runner.request.results import Result
from ollama_engine.runner.schedule.queued import BatchedRequest, Kind, Progress

__all__ = ["EmbeddingRequest"]


@dataclass(slots=True, eq=False, kw_only=True)
class EmbeddingRequest(BatchedRequest):
    """The texts of one call. They arrive in pieces: the first are computed while others are still being tokenized.

    Images are encoded one at a time, each between two steps of other requests; then their text is computed.
    """

    kind: ClassVar[Kind] = "embedding"

    results: Results[object]
    missing: int
    """Number of texts without a vector yet."""
    name: str | None
    """Name of the list of texts, for errors; None for a single text."""
    pending: deque[tuple[int, TokenizedText]] = field(default_factory=deque)
    """Texts waiting for a batch, with their numbers."""
    encoded: dict[int, FloatArray] = field(default_factory=dict)
    """Embeddings of images, by hash, which the text that comes next has: so long nobody drops them."""
    moved_on: SimpleQueue[None] = field(default_factory=SimpleQueue)
    """Gets an entry for each text with images that is computed."""
    n_added: int = 0
    added_tokens: int = 0
    computed_tokens: int = 0

    @property
    def idle(self) -> bool:
        """Whether no text waits for a batch, or the call was cancelled."""
        return not self.pending or self.channel.unwanted

    def progress(self) -> Progress:
        return Progress("batches" if self.started_at else "waiting", self.added_tokens, self.computed_tokens)

    def add(self, texts: Iterable[TokenizedText]) -> None:
        for text in texts:
            self.pending.append((self.n_added, text))
            self.n_added += 1
            self.added_tokens += len(text.tokens)

    def image_to_encode(self) -> MediaItem | None:
        """The next image of the text that comes next, if there is one."""
        return next((item for item in self.pending[0][1].images if not item.ready()), None)

    def give(
        self, parts: Sequence[tuple[int, TokenizedText]], vectors: Sequence[FloatArray | EngineError]
    ) -> Result | None:
        """Take the vectors of some texts; returns a Result after the last ones. Raises the first error."""
        good: list[FloatArray] = []
        for (number, text), vector in zip(parts, vectors, strict=True):
            if isinstance(vector, EngineError):
                raise vector if self.name is None else numbered(vector, self.name, number)
            good.append(vector)
            self.computed_tokens += len(text.tokens)
            if text.images:
                self.moved_on.put(None)
        self.encoded.clear()
        self.results.put([number for number, _ in parts], [text for _, text in parts], good)
        self.missing -= len(parts)
        return None if self.missing else Result(None)
