"""MarkerFinder and LeadingMarker: whether a text has come, told from the bytes of tokens as they come."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["LeadingMarker", "MarkerFinder"]

MOST_BREAKS = 2
"""Line breaks that may come before a leading marker: models write them, and the dialects' parsers skip as many."""


class MarkerFinder:
    """Looks for `marker`, however it is divided into tokens. `token_bytes`: what a token says, control tokens too."""

    def __init__(self, marker: str, token_bytes: Callable[[int], bytes]) -> None:
        self._marker = marker.encode()
        self._token_bytes = token_bytes
        self._tail = b""
        self.has_come = False

    def push(self, token: int) -> bool:
        """Whether the marker has come, with this token or before."""
        return self.feed(self._token_bytes(token))

    def feed(self, text: bytes) -> bool:
        """`push` for bytes."""
        text = self._tail + text
        self.has_come = self.has_come or self._marker in text
        self._tail = text[-max(len(self._marker) - 1, 4) :]
        return self.has_come

    @property
    def between(self) -> bool:
        """Whether a text may be put in here: not within a character, nor where the marker has begun."""
        begun = any(self._tail.endswith(self._marker[:n]) for n in range(1, len(self._marker)))
        return not begun and not _ends_within_character(self._tail)


class LeadingMarker:
    """Tells whether an answer begins with `marker`, however it is divided into tokens, and behind line breaks.

    Attributes:
        leads: True or False once that is certain, before that None.
        rest: what the token that completed the marker says behind it.
    """

    def __init__(self, marker: str, token_bytes: Callable[[int], bytes]) -> None:
        self._marker = marker.encode()
        self._token_bytes = token_bytes
        self._text = b""
        self._breaks = 0
        self.leads: bool | None = None
        self.rest = b""

    @property
    def begun(self) -> bool:
        """Whether part of the marker has come: more than line breaks."""
        return self.leads is None and bool(self._text)

    def push(self, token: int) -> bool | None:
        """`leads`, with this token."""
        if self.leads is not None:
            return self.leads
        self._text += self._token_bytes(token)
        while self._breaks < MOST_BREAKS and self._text.startswith(b"\n") and not self._marker.startswith(self._text):
            self._breaks, self._text = self._breaks + 1, self._text[1:]
        if self._text.startswith(self._marker):
            self.leads, self.rest = True, self._text[len(self._marker) :]
        elif not self._marker.startswith(self._text):
            self.leads = False
        return self.leads


def _ends_within_character(text: bytes) -> bool:
    """Whether UTF-8 bytes are missing at the end."""
    for n, byte in enumerate(reversed(text[-4:]), 1):
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return n < length
    return False
