"""An answer that is to go on: a mark behind its text, which tells where the rendered prompt ends."""

from __future__ import annotations

import secrets
from typing import Any

from ollama_engine.errors import ChatError

__all__ = ["REASONING", "cut_at_mark", "mark_end"]

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which messages have the model's reasoning."""


def mark_end(messages: list[dict[str, Any]], field: bool | str, source: str) -> tuple[str, str]:
    """Put a mark behind the text that is to go on; the mark, and the text. Both are empty where none is.

    `field` of the last message goes on: True is "content", False none. The mark ends with a space, which is missing in
    the rendered text where the template strips.
    """
    if not field:
        return "", ""
    name = "content" if field is True else field
    last, mark = messages[-1], f"END{secrets.token_hex(8)} "
    final = last.get(name)
    if final is None:
        raise ChatError(f"the last message is to go on, but has no {name!r}")
    names = [name]
    if name in REASONING:
        names = [each for each in REASONING if last.get(each) == final]
    if not any(each in source for each in names):
        raise ChatError(f"the last message is to go on in {name!r}, which the chat template does not write")
    if isinstance(final, list):
        index = next((i for i in reversed(range(len(final))) if _text_of_part(final[i]) is not None), None)
        if index is None:
            raise ChatError("the last message is to go on, but none of its parts is a text")
        text = final[index]["text"]
        last[name] = [*final[:index], {**final[index], "text": text + mark}, *final[index + 1 :]]
        return mark, text
    if not isinstance(final, str):
        raise ChatError(f"the last message is to go on in {name!r}, which is no text, but {type(final).__name__}")
    for each in names:
        last[each] = final + mark
    return mark, final


def _text_of_part(part: object) -> str | None:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else None


def cut_at_mark(mark: str, final: str, text: str) -> str:
    """The text before the mark, stripped as the template strips."""
    at = text.rfind(mark.strip())
    if at < 0 or final.strip() not in text:
        raise ChatError("the last message is to go on, but the chat template does not write it as it is")
    return text[:at] if text[at : at + len(mark)] == mark else text[:at].rstrip()
