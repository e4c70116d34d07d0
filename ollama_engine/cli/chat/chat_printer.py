"""ChatPrinter: shows an answer while it comes, what the model thinks before it dimmed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk

__all__ = ["ChatPrinter", "PrintedAnswer"]

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class PrintedAnswer(NamedTuple):
    """An answer, as far as it has come."""

    content: str
    reasoning: str
    last: ChatChunk | None
    """With `finish_reason` and `usage`; None where the user stopped the answer."""


class ChatPrinter:
    """Prints to standard output.

    `reasoning`: whether to show what the model thinks. `dim`: whether the terminal can show it dimmed.
    """

    def __init__(self, *, reasoning: bool, dim: bool) -> None:
        self._reasoning = reasoning
        self._dim = dim

    def show(self, chunks: Iterable[ChatChunk]) -> PrintedAnswer:
        """Print what comes, with a line break at its end. Ctrl-C ends it; other errors go on to the caller."""
        content: list[str] = []
        thoughts: list[str] = []
        last = None
        try:
            for chunk in chunks:
                self._show(chunk, begun=bool(content), thinking=bool(thoughts))
                thoughts += [chunk.reasoning] if chunk.reasoning else []
                content += [chunk.content] if chunk.content else []
                last = chunk if chunk.finish_reason is not None else None
        except KeyboardInterrupt:
            pass
        finally:
            if self._dim and self._reasoning and thoughts:
                _write(PLAIN)  # it may have ended while thinking
            shown = content or (thoughts if self._reasoning else [])
            if shown and not shown[-1].endswith("\n"):
                _write("\n")
        return PrintedAnswer("".join(content), "".join(thoughts), last)

    def _show(self, chunk: ChatChunk, *, begun: bool, thinking: bool) -> None:
        if chunk.reasoning and self._reasoning:
            _write(f"{DIM}{chunk.reasoning}{PLAIN}" if self._dim else chunk.reasoning)
        if chunk.content:
            first = not begun and (thinking or bool(chunk.reasoning))
            text = chunk.content.lstrip("\n") if first else chunk.content
            _write("\n\n" + text if first and self._reasoning else text)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
