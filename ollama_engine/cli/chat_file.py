"""Conversations as files: JSON with the messages as OpenAI's API writes them, so that other programs read them too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ollama_engine.errors import ChatError
from ollama_engine.new_file import write_new_file

__all__ = ["SavedChat", "load_chat", "save_chat"]

ROLES = ("user", "assistant")


class SavedChat(NamedTuple):
    """A conversation."""

    system: str | None
    messages: list[dict[str, str]]
    """Turns of user and assistant: "role", "content", and "reasoning" where there is some."""


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
        write_new_file(Path(name).expanduser(), len(data), lambda file: file.write(data), overwrite=again)
    except FileExistsError:
        raise ChatError(f"{name} exists; give another name, or remove it first") from None
    except (OSError, ValueError) as error:
        raise ChatError(f"{name} cannot be written: {_reason(error)}") from None


def load_chat(name: str) -> SavedChat:
    """Read a conversation. Raises ChatError for what is none."""
    if not name:
        raise ChatError("/load takes the name of a file")
    try:
        found = json.loads(Path(name).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ChatError(f"{name} cannot be read: {_reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ChatError(f"{name} is no JSON file in UTF-8: {error}") from None
    messages = found.get("messages") if isinstance(found, dict) else None
    if not isinstance(messages, list):
        raise ChatError(f'{name} is no conversation: there is no list of "messages"')
    system = None
    if messages and isinstance(messages[0], dict) and messages[0].get("role") == "system":
        system = _texts(name, 0, messages[0], ("system",))["content"]
        messages = messages[1:]
    turns = [_texts(name, number, each, ROLES) for number, each in enumerate(messages, start=system is not None)]
    return SavedChat(system, turns)


def _texts(name: str, number: int, message: Any, roles: tuple[str, ...]) -> dict[str, str]:
    known = message if isinstance(message, dict) else {}
    if known.get("role") not in roles or not isinstance(known.get("content"), str):
        raise ChatError(
            f"{name}: messages[{number}] has a role ({', '.join(roles)}) and a text as content; got {message!r:.80}"
        )
    reasoning = known.get("reasoning")
    kept = {"role": known["role"], "content": known["content"]}
    return kept | ({"reasoning": reasoning} if isinstance(reasoning, str) else {})


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
