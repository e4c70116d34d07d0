"""Log-probabilities of tokens, with their texts and bytes, in the two forms that OpenAI's API has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ollama_engine.sample import TokenLogprobs
from ollama_engine.server.served import ServedModel

__all__ = ["chat_logprobs", "completion_logprobs", "token_entries"]

LEAST = -9999.0
"""Stands for the logarithm of a probability of 0, which JSON cannot hold."""


async def chat_logprobs(model: ServedModel, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Those of a chat completion: an object for each token."""
    return {"content": await token_entries(model, entries), "refusal": None}


async def token_entries(model: ServedModel, entries: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    """An object for each token: what it is, what else it could have been."""
    texts = await _bytes_of(model, entries)
    return [
        _entry(texts[entry.token], entry.logprob)
        | {"top_logprobs": [_entry(texts[token], logprob) for token, logprob in entry.top]}
        for entry in entries
    ]


def _entry(text: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _shown(text), "logprob": max(logprob, LEAST), "bytes": list(text)}


async def completion_logprobs(
    model: ServedModel, entries: Sequence[tuple[int, TokenLogprobs | None]], *, offset: int
) -> tuple[dict[str, Any], int]:
    """Those of a text completion: lists beside each other; and the offset behind the last token.

    `entries` are tokens with their log-probabilities, None for the first of a prompt. `offset` is the number of
    characters before the first of them.
    """
    texts = await _bytes_of(model, [entry for _, entry in entries if entry], [token for token, _ in entries])
    lists: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token, entry in entries:
        text = _shown(texts[token])
        lists["tokens"].append(text)
        lists["token_logprobs"].append(None if entry is None else max(entry.logprob, LEAST))
        lists["top_logprobs"].append(None if entry is None else _best(texts, entry))
        lists["text_offset"].append(offset)
        offset += len(text)
    return lists, offset


def _best(texts: Mapping[int, bytes], entry: TokenLogprobs) -> dict[str, float]:
    best: dict[str, float] = {}
    for token, logprob in entry.top:
        best.setdefault(_shown(texts[token]), max(logprob, LEAST))  # two tokens may have one text: the better one
    return best


def _shown(text: bytes) -> str:
    """A token's text; one that is a part of a character is shown as its bytes."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


async def _bytes_of(
    model: ServedModel, entries: Sequence[TokenLogprobs], tokens: Sequence[int] = ()
) -> dict[int, bytes]:
    wanted = {*tokens, *(entry.token for entry in entries), *(token for entry in entries for token, _ in entry.top)}
    ids = sorted(wanted)
    return dict(zip(ids, await model.token_bytes(ids), strict=True))
