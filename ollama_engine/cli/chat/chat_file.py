"""Conversations as files: JSON with the messages as OpenAI's API writes them, so that other programs read them too."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from ollama_engine.errors import ChatError
from ollama_engine.new_file import write_new_file

__all__ = ["IMAGE", "SavedChat", "load_chat", "save_chat", "shown"]

ROLES = ("user", "assistant")
IMAGE = "[image]"
"""Placeholder of an image where messages are shown."""


class SavedChat(NamedTuple):
    """A conversation."""

    system: str | None
    messages: list[dict[str, Any]]
    """Turns of user and assistant: "role", "content" (a text, or parts: texts and images as data URLs), and "reasoning"
    where there is some."""


def save_chat(name: str, chat: SavedChat, *, again: bool = False) -> None:
    """Write a conversation to a new file, or `again` to that which it wrote before.

    Raises ChatError where that cannot be, and where the file exists.
    """
    if not name:
        raise ChatError("/save takes the name of a file")
    system = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    text = json.dumps({"messages": [*system, *chat.messages]}, ensure_ascii=False, indent=1)
    try:
        data = (text + "\n").encode()
        write_new_file(Path(os.path.expanduser(name)), len(data), lambda file: file.write(data), overwrite=again)
    except FileExistsError:
        raise ChatError(f"{name} exists; give another name, or remove it first") from None
    except (OSError, ValueError) as error:
        raise ChatError(f"{name} cannot be written: {_reason(error)}") from None


def load_chat(name: str) -> SavedChat:
    """Read a conversation. Raises ChatError for what is none."""
    if not name:
        raise ChatError("/load takes the name of a file")
    try:
        saved = json.loads(Path(os.path.expanduser(name)).read_text(encoding="utf-8"))
    except OSError as error:
        raise ChatError(f"{name} cannot be read: {_reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ChatError(f"{name} is no JSON file in UTF-8: {error}") from None
    messages = saved.get("messages") if isinstance(saved, dict) else None
    if not isinstance(messages, list):
        raise ChatError(f'{name} is no conversation: there is no list of "messages"')
    system = None
    if messages and isinstance(messages[0], dict) and messages[0].get("role") == "system":
        system = shown(_turn(name, 0, messages[0], ("system",))["content"])
        messages = messages[1:]
    turns = [_turn(name, number, each, ROLES) for number, each in enumerate(messages, start=system is not None)]
    return SavedChat(system, turns)


def shown(content: str | list[dict[str, Any]]) -> str:
    """A content as text."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else IMAGE for part in content)


def _turn(name: str, number: int, message: Any, roles: tuple[str, ...]) -> dict[str, Any]:
    known = message if isinstance(message, dict) else {}
    content = known.get("content")
    if known.get("role") not in roles or not (isinstance(content, str) or _are_parts(content)):
        raise ChatError(
            f"{name}: messages[{number}] has a role ({', '.join(roles)}) and as content a text, or a list of texts and "
            f"of images as data URLs; got {message!r:.80}"
        )
    reasoning = known.get("reasoning")
    kept = {"role": known["role"], "content": content}
    return kept | ({"reasoning": reasoning} if isinstance(reasoning, str) else {})


def _are_parts(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(part, dict) and _is_part(part) for part in content)


def _is_part(part: dict[str, Any]) -> bool:
    """Whether it is a text or a data URL: a file of a conversation names no other files."""
    if part.get("type") == "text":
        return isinstance(part.get("text"), str)
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, dict) else url
    return part.get("type") == "image_url" and isinstance(url, str) and url.startswith("data:")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
