"""Formats of answers: types stay with the caller, their schemas cross, and values are read at the caller's end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_origin

from ollama_engine.sample.constraints.answer import Reading
from ollama_engine.sample.constraints.source import read_format

__all__ = ["FormatAtHome", "SentReader", "sent_reader"]


@dataclass(frozen=True, slots=True)
class SentReader:
    """The part of a chunk's reader that crosses: why the answer is not whole, None where it is."""

    cut: str | None = None

    def read(self, text: str, tokens: Sequence[int] | None) -> object:
        """The text: what it means is known at the caller's end only."""
        return text


def sent_reader(reader: Any) -> SentReader:
    """The reader of a last chunk, to cross."""
    return SentReader(reader.cut)


class FormatAtHome:
    """The caller's end of the option `format`."""

    def __init__(self, given: object) -> None:
        self._given = given

    @property
    def sent(self) -> object:
        """The format as it crosses: a type becomes its JSON schema. Raises as `read_format` does."""
        if isinstance(self._given, type) or get_origin(self._given) is not None:
            schema: Mapping[str, Any] | None = read_format(self._given).schema
            return schema
        return self._given

    def reading(self, chunk: Any) -> Any:
        """The chunk, with a reader that reads what this format means."""
        if not isinstance(chunk.reader, SentReader):
            return chunk
        if self._given is None:  # a format of the chat's own, such as that of a forced call
            return replace(chunk, reader=None)

        value: Callable[[str], object] = read_format(self._given).read
        return replace(chunk, reader=Reading(value, (), None, chunk.reader.cut))  # forks do not cross
