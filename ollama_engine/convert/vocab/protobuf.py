"""Reads the protobuf wire format, as far as SentencePiece's tokenizer.model needs it.

Format: https://protobuf.dev/programming-guides/encoding. A message becomes lists of raw values by field number.
"""

from __future__ import annotations

import struct

from ollama_engine.errors import ModelFormatError

__all__ = ["Message", "read_message"]

Message = dict[int, list[int | bytes]]
"""Whole numbers for varints and fixed-width fields, bytes for strings and nested messages."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def read_message(data: bytes, home: str) -> Message:
    """The fields of a message. Raises ModelFormatError when it is cut off or no protobuf."""
    message: Message = {}
    at = 0
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            value: int | bytes
            value, at = _value(data, at, tag & 7)
            message.setdefault(tag >> 3, []).append(value)
    except (IndexError, struct.error, ValueError):
        raise ModelFormatError(f"{home}: not a SentencePiece model, or cut off near byte {at} of {len(data)}") from None
    return message


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, where the next field starts)."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a varint has at most ten bytes")


def _value(data: bytes, at: int, kind: int) -> tuple[int | bytes, int]:
    if kind == VARINT:
        return _varint(data, at)
    if kind == FIXED64:
        return struct.unpack_from("<Q", data, at)[0], at + 8
    if kind == FIXED32:
        return struct.unpack_from("<I", data, at)[0], at + 4
    if kind == BYTES:
        size, at = _varint(data, at)
        if at + size > len(data):
            raise ValueError("a field reaches beyond the end")
        return data[at : at + size], at + size
    raise ValueError(f"wire type {kind}")
