"""MarkerFinder: whether a text has come, told from the bytes of tokens as they come."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["MarkerFinder"]


class MarkerFinder:
    """Looks for `marker`, however it is divided into tokens. `token_bytes`: what a token says, control tokens too."""

    def __init__(self, marker: str, token_bytes: Callable[[int], bytes]) -> None:
        self._marker = marker.encode()
        self._token_bytes = token_bytes
        self._tail = b""
        self.found = False

    def push(self, token: int) -> bool:
        """Whether the marker has come, with this token or before."""
        text = self._tail + self._token_bytes(token)
        self.found = self.found or self._marker in text
        self._tail = text[-max(len(self._marker) - 1, 4) :]
        return self.found

    @property
    def between(self) -> bool:
        """Whether a text may be put in here: not within a character, nor where the marker has begun."""
        begun = any(self._tail.endswith(self._marker[:n]) for n in range(1, len(self._marker)))
        return not begun and not _ends_within_character(self._tail)


def _ends_within_character(text: bytes) -> bool:
    """Whether UTF-8 bytes are missing at the end."""
    for n, byte in enumerate(reversed(text[-4:]), 1):
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return n < length
    return False
