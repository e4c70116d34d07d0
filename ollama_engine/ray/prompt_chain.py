"""prompt_chain: what a prompt begins with, as hashes of ever longer beginnings. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

__all__ = ["BLOCK", "MOST_BLOCKS", "prompt_chain"]

BLOCK = 512
"""Characters of a block. A system message of one page is about six."""

MOST_BLOCKS = 256
"""Blocks that are looked at: prompts that agree in so many go to the same replica whatever comes behind."""

FIRST = ("tools", "template", "system", "documents")
"""Options of a request that templates write before the messages, or that change all of what they write."""


def prompt_chain(model: str, prompt: Any, options: dict[str, Any]) -> list[bytes]:
    """Hashes of a prompt's beginnings, the shortest first: two prompts share the first n exactly as they begin alike.

    `prompt` is a text, token ids, segments or messages, as the codec sends them. A beginning ends behind each block of
    a text, and behind each message, so that the next request of a conversation begins like the one before.
    """
    state = blake2b(model.encode("utf-8", "surrogatepass"), digest_size=8)
    state.update(_written({name: options[name] for name in FIRST if options.get(name) is not None}))
    chain: list[bytes] = []
    for block in _blocks(prompt):
        if len(chain) == MOST_BLOCKS:
            break
        state.update(block)
        chain.append(state.digest())
    return chain


def _blocks(prompt: Any) -> Iterator[bytes]:
    parts: Iterable[Any] = prompt if isinstance(prompt, list) and not _is_ids(prompt) else (prompt,)
    for part in parts:
        written = _written(part)
        for start in range(0, len(written), BLOCK):
            yield written[start : start + BLOCK]


def _is_ids(prompt: list[Any]) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


def _written(part: Any) -> bytes:
    """A part as bytes. A text as it is: as JSON, a quote would stand behind its last block."""
    if isinstance(part, str):
        return part.encode("utf-8", "surrogatepass")
    return json.dumps(part, separators=(",", ":"), sort_keys=True, default=str).encode()
