"""Session files: tokens with their keys and values. An incomplete file, or one of another model, is refused.

    8 bytes   magic
    u32       version
    u32       length of the header
    header    JSON: what follows, and of which model
    i32 ...   tokens
    for each media item: i32 positions where it has some of its own, f32 embeddings
    for each kind of layers: i32 positions, then the rows of keys and of values, layer by layer
    32 bytes  SHA-256 of all before

Numbers are little-endian. Sizes are checked against the file's before memory is taken for them. The checksum finds
damage, not malice: a forged file can hold keys and values that spoil answers.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import SessionFormatError
from ollama_engine.home_path import at_home
from ollama_engine.input import FloatArray, Int32Array
from ollama_engine.kvcache import SavedRows
from ollama_engine.new_file import write_new_file
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.request.inputs import Group, Inputs, floor_cut
from ollama_engine.runner.schedule.pinned_prefix import Saved
from ollama_engine.runner.session.media_record import (
    MediaRecord,
    header_fields,
    media_pieces,
    media_records,
    parse_media,
    restored_span,
)

__all__ = ["Layout", "SessionFile", "layout_of", "read_session", "write_session"]

MAGIC = b"\x93oesess\n"
VERSION = 4
"""3: recurrent states lie in blocks of 32 columns. 4: keys and values in q4_0 are rotated."""
_PREFIX = struct.Struct("<8sII")
_MAX_HEADER = 1 << 20
_DIGEST = hashlib.sha256().digest_size
_MAX_TOKENS = 1 << 24
_MAX_ROW = 1 << 32


@dataclass(frozen=True, slots=True)
class Layout:
    """How a cache stores tokens. Independent of flash attention: rows have the same bytes with and without it."""

    dtype: str
    row_bytes: tuple[tuple[int, ...], ...]
    """As `Saveable.row_bytes`; () where keys and values are not saved."""
    byteorder: str = sys.byteorder


def layout_of(loaded: Loaded) -> Layout:
    """The layout of a loaded model's cache."""
    saveable = loaded.cache.saveable
    return Layout(loaded.config.kv_cache_type, () if saveable is None else saveable.row_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class SessionFile:
    """The contents of a session file: whose model, which tokens, and their keys and values."""

    fingerprint: str
    layout: Layout
    inputs: Inputs
    saved: Saved
    embeddings: tuple[FloatArray, ...] = ()
    """Embeddings of each span of `inputs.media`; for writing."""


@dataclass(frozen=True, slots=True)
class _Header:
    fingerprint: str
    layout: Layout
    n_tokens: int
    length: int
    exact: int | None
    cells: tuple[int, ...]
    """Number of cells, for each kind of layers."""
    namespace: str
    groups: tuple[Group, ...]
    media: tuple[MediaRecord, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of tokens, media, positions and rows."""
        rows = zip(self.cells, self.layout.row_bytes, strict=True)
        media = sum(record.nbytes for record in self.media)
        return 4 * self.n_tokens + media + sum(n * (4 + sum(sizes)) for n, sizes in rows)


# -- writing -----------------------------------------------------------------------------------------------------------


def write_session(path: str | os.PathLike[str], session: SessionFile, *, overwrite: bool = False) -> None:
    """Write a file that is complete when it appears under its name; only its owner may read it. Raises OSError."""
    size = sum(memoryview(piece).nbytes for piece in _pieces(session))
    write_new_file(at_home(path), size, lambda file: _write(file, session), overwrite=overwrite, private=True)


def _write(file: BinaryIO, session: SessionFile) -> None:
    digest = hashlib.sha256()
    for piece in _pieces(session):
        digest.update(piece)
        file.write(piece)
    file.write(digest.digest())


def _pieces(session: SessionFile) -> Iterator[bytes | memoryview]:
    saved, layout, inputs = session.saved, session.layout, session.inputs
    header = json.dumps({
        "fingerprint": session.fingerprint,
        "dtype": layout.dtype,
        "row_bytes": layout.row_bytes,
        "byteorder": layout.byteorder,
        "n_tokens": len(inputs),
        "namespace": inputs.namespace,
        "groups": inputs.groups,
        "media": [header_fields(record) for record in media_records(inputs.media, session.embeddings)],
        "length": saved.length,
        "exact": saved.exact,
        "cells": [len(part.positions) for part in saved.parts] or [0] * len(layout.row_bytes),
    }).encode()  # fmt: skip
    yield _PREFIX.pack(MAGIC, VERSION, len(header))
    yield header
    yield _little(inputs.tokens)
    yield from media_pieces(inputs.media, session.embeddings)
    for part in saved.parts:
        yield _little(part.positions)
        for rows in part.rows:
            yield np.ascontiguousarray(rows).reshape(-1).data


def _little(numbers: Int32Array) -> bytes:
    return numbers.astype("<i4").tobytes()


# -- reading -----------------------------------------------------------------------------------------------------------


def read_session(path: str | os.PathLike[str], fingerprint: str, n_ids: int) -> SessionFile:
    """Read a file that `write_session` wrote for the model with this fingerprint.

    Raises OSError, and SessionFormatError for a file that is damaged, or of another version or model.
    """
    path = at_home(path)
    try:
        with open(path, "rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size, fingerprint, n_ids)
    except SessionFormatError as error:
        raise SessionFormatError(f"{path}: {error}") from None


class _Reader:
    """Reads a file in order, and computes the digest of what it has read."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def bytes(self, n: int) -> npt.NDArray[np.uint8]:
        """Read `n` bytes, uint8 [n]. Raises SessionFormatError where the file ends before."""
        data = np.empty(n, dtype=np.uint8)
        if self._file.readinto(data.data) != n:
            raise SessionFormatError("the file became shorter while it was read")
        self._digest.update(data.data)
        return data

    def numbers(self, n: int) -> Int32Array:
        """Read `n` little-endian integers, int32 [n]."""
        return self.bytes(4 * n).view("<i4").astype(np.int32)

    def floats(self, n: int) -> FloatArray:
        """Read `n` little-endian numbers, float32 [n]."""
        return self.bytes(4 * n).view("<f4").astype(np.float32)

    def check(self) -> None:
        """Raise SessionFormatError unless what follows is the digest."""
        if self._file.read(_DIGEST) != self._digest.digest():
            raise SessionFormatError("the file is damaged: its checksum does not fit")


def _read(file: BufferedReader, size: int, fingerprint: str, n_ids: int) -> SessionFile:
    reader = _Reader(file)
    if size < _PREFIX.size + _DIGEST:
        raise SessionFormatError(f"a file of {size} bytes is no session, or was cut short")
    magic, version, n_header = _PREFIX.unpack(reader.bytes(_PREFIX.size).tobytes())
    if magic != MAGIC:
        raise SessionFormatError("the file is no session that Session.save wrote")
    if version != VERSION:
        raise SessionFormatError(f"session files of version {VERSION} can be read, this is version {version}")
    rest = size - _PREFIX.size - _DIGEST
    if n_header > min(_MAX_HEADER, rest):
        raise SessionFormatError(f"the file is damaged or was cut short: a header of {n_header} bytes in one of {size}")
    header = _parse(reader.bytes(n_header).tobytes())
    if header.fingerprint != fingerprint:
        raise SessionFormatError("the session is of another model: load the one that it was saved with")
    if header.nbytes != rest - n_header:
        raise SessionFormatError(
            f"the file is damaged or was cut short: {size} bytes, "
            f"its header announces {size - rest + n_header + header.nbytes}"
        )
    tokens = reader.numbers(header.n_tokens)
    media = tuple(restored_span(record, reader.numbers, reader.floats) for record in header.media)
    parts = tuple(
        SavedRows(reader.numbers(n), tuple(reader.bytes(n * row).reshape(n, row) for row in sizes))
        for n, sizes in zip(header.cells, header.layout.row_bytes, strict=True)
    )
    reader.check()
    inputs = Inputs(tokens, media, header.groups, header.namespace)
    session = SessionFile(header.fingerprint, header.layout, inputs, Saved(header.length, header.exact, parts))
    _check(session, n_ids)
    return session


def _parse(text: bytes) -> _Header:
    try:
        fields = json.loads(text)
        layout = Layout(
            _text(fields["dtype"]),
            tuple(tuple(_number(n, 1, _MAX_ROW) for n in _list(sizes)) for sizes in _list(fields["row_bytes"])),
            _text(fields["byteorder"]),
        )
        n_tokens = _number(fields["n_tokens"], 0, _MAX_TOKENS)
        length = _number(fields["length"], 0, n_tokens)
        exact = None if fields["exact"] is None else _number(fields["exact"], 0, length - 1)
        cells = tuple(_number(n, 0, length) for n in _list(fields["cells"]))
        if len(cells) != len(layout.row_bytes):
            raise ValueError
        groups, media = _groups(fields["groups"], n_tokens), parse_media(fields["media"], n_tokens)
        namespace = _text(fields["namespace"])
        return _Header(_text(fields["fingerprint"]), layout, n_tokens, length, exact, cells, namespace, groups, media)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise SessionFormatError("the file is damaged: its header makes no sense") from None


def _groups(value: Any, n_tokens: int) -> tuple[Group, ...]:
    groups, last = [], 0
    for pair in _list(value):
        begin, end = _list(pair)
        groups.append((_number(begin, last, n_tokens), _number(end, begin + 1, n_tokens)))
        last = end
    return tuple(groups)


def _number(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _check(session: SessionFile, n_ids: int) -> None:
    """Raise SessionFormatError for an intact file that this model cannot use."""
    tokens, saved = session.inputs.tokens, session.saved
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < n_ids:
        raise SessionFormatError("the session has tokens that the model does not know")
    if floor_cut(saved.length, session.inputs.groups) != saved.length:
        raise SessionFormatError("the session has keys and values of half an image")
    for part in saved.parts:
        at = part.positions
        if len(at) and not (at[0] >= 0 and at[-1] < saved.length and (np.diff(at.astype(np.int64)) > 0).all()):
            raise SessionFormatError("the session has keys and values of tokens that it does not have")
