"""Large pages for mapped weights, which a token reads faster: what lies in small ones is read again."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ollama_engine.ml.gguf.gguf_file import TensorInfo
from ollama_engine.ml.gguf.model_file import ModelFile
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.weights.large_pages import AT_ONCE, bytes_in_large_pages, read_into_large_pages

__all__ = ["PageEnlarger"]

log = logging.getLogger(__name__)

SECONDS = 10.0
"""How long all files of a model are read at most."""
LARGE = 2 << 20
FIRST = 2 * LARGE
"""Of a file system that has no large pages no more is read, at each load."""
LARGE_ENOUGH = 64 << 20
"""Bytes of mapped weights that are worth large pages: less may stay in a cache."""
LEAST_SPEED = 3e8
"""Bytes per second that a disk must read: a slower one would keep a load waiting for longer than that is worth."""


class Extent(NamedTuple):
    """Of a file, in whole 2 MiB."""

    begin: int
    end: int


class PageEnlarger:
    """Reads files again for SECONDS in all. A signal's handler runs between two reads."""

    def __init__(self) -> None:
        self._left = SECONDS

    def enlarge(self, storage: Storage, file: ModelFile, infos: Iterable[TensorInfo]) -> None:
        """Read again what of these tensors, mapped from a file and paged in, lies in small pages, if it is a tenth.

        It ends where the disk is slow, and where pages stay small: see `read_into_large_pages`.
        """
        extents = _extents(infos, storage.nbytes)
        total = sum(end - begin for begin, end in extents)
        if total < LARGE_ENOUGH or self._left <= 0:
            return
        there = [bytes_in_large_pages(storage, begin, end - begin) for begin, end in extents]
        if min(there) < 0 or sum(there) >= 0.9 * total:
            return
        start = time.monotonic()
        gained = self._read(storage, file, extents)
        took = time.monotonic() - start
        self._left -= took
        if gained > 0:
            log.info("weights: %d MiB were read again in %.1f s; now %d of %d MiB lie in large pages",
                     gained >> 20, took, sum(there) + gained >> 20, total >> 20)  # fmt: skip

    def _read(self, storage: Storage, file: ModelFile, extents: list[Extent]) -> int:
        """Returns how many bytes lie in large pages that did not before."""
        start = time.monotonic()
        read = gained = in_vain = 0
        for begin, end in _pieces(extents):
            more, now_large = read_into_large_pages(storage, file.fileno(), begin, end - begin)
            read, gained = read + more, gained + max(0, now_large)
            in_vain = 0 if now_large > 0 else in_vain + more
            took = time.monotonic() - start
            if took > self._left or in_vain >= (AT_ONCE if gained else FIRST) or AT_ONCE <= read < LEAST_SPEED * took:
                break
        return gained


def _extents(infos: Iterable[TensorInfo], size: int) -> list[Extent]:
    """Where tensors lie in a file of so many bytes, in order: without what others hold, such as a GPU."""
    extents: list[Extent] = []
    for info in sorted(infos, key=lambda info: info.offset):
        begin = info.offset // LARGE * LARGE
        end = min(-(-(info.offset + info.nbytes) // LARGE), size // LARGE) * LARGE
        if extents and begin <= extents[-1].end:
            begin, end = extents[-1].begin, max(end, extents.pop().end)
        if begin < end:
            extents.append(Extent(begin, end))
    return extents


def _pieces(extents: list[Extent]) -> Iterator[Extent]:
    size = FIRST
    for begin, end in extents:
        at = begin
        while at < end:
            yield Extent(at, at := min(at + size, end))
            size = AT_ONCE
