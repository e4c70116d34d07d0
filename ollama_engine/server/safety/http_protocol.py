"""LimitedHttp: uvicorn's HTTP, with limits for the heads of requests: their size, and the time that they take."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["LARGEST_HEAD", "limited_http"]

LARGEST_HEAD = 64 * 1024
"""Bytes of the first line and all headers."""
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class LimitedHttp(HttpToolsProtocol):
    """One connection. From its beginning, and from the first byte of a later request, a head has `patience` seconds."""

    patience = math.inf
    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _head_size = 0
    _fields_size = 0
    _refused = False

    def connection_made(self, transport: Any) -> None:
        """asyncio: a client has connected."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is closed."""
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes have come."""
        super().data_received(data)
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > LARGEST_HEAD:
                self._refuse(TOO_LARGE)

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        if not self._in_head:
            self._await_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """httptools: a part of the first line."""
        self._fields_size += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        self._fields_size += len(name) + len(value) + len(": \r\n")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """httptools: its head is complete. It may have come at once, and be larger than what is counted by pieces."""
        self._end_head()
        if self._fields_size > LARGEST_HEAD:
            self._refused = True
            self._refuse(TOO_LARGE)
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """httptools: a part of its body."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """httptools: a request has come."""
        if not self._refused:
            super().on_message_complete()

    def _await_head(self) -> None:
        self._in_head, self._head_size, self._fields_size = True, 0, 0
        if self.patience < math.inf:
            self._timer = self.loop.call_later(self.patience, self._refuse, TOO_SLOW)

    def _end_head(self) -> None:
        self._in_head = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, response: bytes) -> None:
        self._end_head()
        if not self.transport.is_closing():
            # Behind the answer to an earlier request that is still being written, another one would be taken for it.
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(response)
            self.transport.close()


def limited_http(patience: float) -> type[LimitedHttp]:
    """The protocol with this limit, for uvicorn's `http`."""
    return type("LimitedHttp", (LimitedHttp,), {"patience": patience})
