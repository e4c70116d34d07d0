"""MediaRecord: a media item in a session file: its place, positions and embeddings.

Keys and values of a session may have to be computed again, so the file also contains the embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from ollama_engine.input import FloatArray, Int32Array, MediaItem
from ollama_engine.runner.request.inputs import MediaSpan

__all__ = ["MediaRecord", "header_fields", "media_pieces", "media_records", "parse_media", "restored_span"]

_MOST = 1 << 24
_MOST_AXES = 8


@dataclass(frozen=True, slots=True)
class MediaRecord:
    """The header's record of one span. `hash` is hexadecimal; embeddings are [rows, width]."""

    begin: int
    end: int
    offset: int
    hash: str
    n_inputs: int
    n_positions: int | None
    cross_attention: bool
    axes: int
    """Rows of its positions; 0 where it has none of its own."""
    rows: int
    width: int

    @property
    def nbytes(self) -> int:
        """Bytes of its positions and embeddings."""
        return 4 * (self.axes * self.n_inputs + self.rows * self.width)


def media_records(media: Sequence[MediaSpan], embeddings: Sequence[FloatArray]) -> list[MediaRecord]:
    """The records of these spans, whose items have these embeddings."""
    return [_record(span, rows) for span, rows in zip(media, embeddings, strict=True)]


def _record(span: MediaSpan, rows: FloatArray) -> MediaRecord:
    item = span.item
    return MediaRecord(
        begin=span.begin,
        end=span.end,
        offset=span.offset,
        hash=f"{item.hash:x}",
        n_inputs=item.n_inputs,
        n_positions=item.n_positions,
        cross_attention=item.cross_attention,
        axes=0 if item.positions is None else len(item.positions),
        rows=rows.shape[0],
        width=rows.shape[1],
    )


def media_pieces(media: Sequence[MediaSpan], embeddings: Sequence[FloatArray]) -> Iterator[bytes]:
    """The bytes behind the header: for each span positions i32 [axes, n_inputs], then embeddings f32, little-endian."""
    for span, rows in zip(media, embeddings, strict=True):
        if span.item.positions is not None:
            yield span.item.positions.astype("<i4").tobytes()
        yield rows.astype("<f4").tobytes()


def header_fields(record: MediaRecord) -> dict[str, Any]:
    """The record as JSON takes it."""
    return asdict(record)


def parse_media(value: Any, n_tokens: int) -> tuple[MediaRecord, ...]:
    """Records of a header. Raises KeyError, TypeError or ValueError for anything that was not written so."""
    if not isinstance(value, list):
        raise TypeError
    records = tuple(_parse(each) for each in value)
    end = 0
    for record in records:
        if (
            not end <= record.begin < record.end <= n_tokens
            or record.offset + record.end - record.begin > record.n_inputs
        ):
            raise ValueError
        end = record.end
    return records


def _parse(value: Any) -> MediaRecord:
    if not isinstance(value, dict) or value.keys() != {field.name for field in fields(MediaRecord)}:
        raise TypeError
    for name in ("begin", "end", "offset", "n_inputs", "axes", "rows", "width"):
        if type(value[name]) is not int or not 0 <= value[name] <= (_MOST_AXES if name == "axes" else _MOST):
            raise ValueError
    moved = value["n_positions"]
    if type(value["cross_attention"]) is not bool or not (
        moved is None or (type(moved) is int and 0 <= moved <= _MOST)
    ):
        raise ValueError
    int(value["hash"], 16)
    record = MediaRecord(**value)
    if not record.cross_attention and record.rows != record.n_inputs:
        raise ValueError
    return record


def restored_span(
    record: MediaRecord, numbers: Callable[[int], Int32Array], floats: Callable[[int], FloatArray]
) -> MediaSpan:
    """The span that a record describes; `numbers` and `floats` read on in the file."""
    positions = numbers(record.axes * record.n_inputs).reshape(record.axes, -1) if record.axes else None
    rows = floats(record.rows * record.width).reshape(record.rows, record.width)
    item = MediaItem(
        hash=int(record.hash, 16),
        n_inputs=record.n_inputs,
        embeddings=lambda: rows,
        positions=None if positions is None else np.ascontiguousarray(positions),
        n_positions=record.n_positions,
        cross_attention=record.cross_attention,
        n_rows=record.rows if record.cross_attention else None,
    )
    return MediaSpan(record.begin, record.end, item, record.offset)
