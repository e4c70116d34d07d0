"""LateReader: the reader of an answer whose conversation is still being rendered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ollama_engine.runner.chat.answer_reader import AnswerReader
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.request.results import Chunk

__all__ = ["LateReader"]


class LateReader:
    """Reads as the `AnswerReader` that is set before the request is submitted, and so before its first chunk."""

    def __init__(self) -> None:
        self._reader: AnswerReader | None = None

    def use(self, reader: AnswerReader) -> None:
        """Set what reads."""
        self._reader = reader

    def read(self, chunk: Chunk) -> ChatChunk:
        """See `AnswerReader`."""
        assert self._reader is not None, "chunks come after the request was submitted"
        return self._reader.read(chunk)
