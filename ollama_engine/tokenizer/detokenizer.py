"""Turns a stream of ids into text without cutting a character in two."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable

__all__ = ["Detokenizer"]


class Detokenizer:
    """Text of one generation, id by id. Made by `Tokenizer.detokenizer`; not to be shared between threads.

    The joined texts of `push` and `flush` equal `Tokenizer.decode` of all ids. Bytes of an incomplete character wait
    for the next ids; bytes that cannot become a character any more turn into U+FFFD.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, strip_space: bool) -> None:
        self._token_bytes = token_bytes
        self._waiting = b""
        self._strip_space = strip_space

    def push(self, token_id: int) -> str:
        """The text that this id completes; may be empty. Raises TokenizerError for an id outside of the vocabulary."""
        data = self._token_bytes(token_id)
        if self._strip_space and data:
            data = data.removeprefix(b" ")
            self._strip_space = False
        data = self._waiting + data
        text, n_used = utf_8_decode(data, "replace", False)
        self._waiting = data[n_used:]
        return text

    def flush(self) -> str:
        """The text of waiting bytes, U+FFFD or "". Ids pushed later start a new character."""
        text, _ = utf_8_decode(self._waiting, "replace", True)
        self._waiting = b""
        return text
