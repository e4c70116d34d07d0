"""A `tiktoken.model` (Kimi) -> tokenizer model `gpt2`: lines of a token in base64 and its rank, which is its id.

tiktoken joins the two neighbours whose join has the lowest rank. So each token is made of the two that are left of its
bytes when all joins of lower ranks are done, and these pairs, in order of rank, are merges.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping

from ollama_engine.convert.vocab.tokens import AddedToken, TokenTable
from ollama_engine.errors import ModelFormatError
from ollama_engine.tokenizer.bpe import gpt2_alphabet
from ollama_engine.tokenizer.vocab import TokenType

__all__ = ["tiktoken_table"]

RESERVED = 258
"""Rows behind the ranks that are control tokens, named or not: 256, and two that tokenization_kimi.py adds."""


SPELLING = [chr(code) for code in gpt2_alphabet()]
"""The character for each byte."""


def tiktoken_table(data: bytes, added: Iterable[AddedToken], pre: str, n_vocab: int, home: str) -> TokenTable:
    """The rows for a tiktoken.model. Raises ModelFormatError when it is not as that format has it."""
    ranks = _read(data, home)
    table = TokenTable.empty("gpt2", pre, n_vocab, scored=False)
    for token, rank in ranks.items():
        table.put(rank, _spelled(token), TokenType.NORMAL)
    for id_ in range(len(ranks), min(len(ranks) + RESERVED, n_vocab)):
        table.put(id_, f"<|reserved_token_{id_}|>", TokenType.CONTROL)
    for named in added:
        table.put(named.id, named.text, TokenType.CONTROL)
    table.merges = list(_merges(ranks, home))
    return table


def _read(data: bytes, home: str) -> dict[bytes, int]:
    """{token: rank}, in order of rank."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ModelFormatError(f"{home}: line {number} is no token in base64 and its rank: {line[:60]!r}") from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ModelFormatError(f"{home}: the ranks of {len(ranks)} tokens are not 0 to {len(ranks) - 1}, each once")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise ModelFormatError(f"{home}: {len(missing)} single bytes are no tokens, such as 0x{missing[0]:02x}")
    return dict(sorted(ranks.items(), key=lambda entry: entry[1]))


def _merges(ranks: Mapping[bytes, int], home: str) -> Iterator[str]:
    for token, rank in ranks.items():
        if len(token) > 1:
            parts = _parts(token, ranks, rank)
            if len(parts) != 2:
                raise ModelFormatError(
                    f"{home}: token {rank} is not made of two with lower ranks, but of {parts!r:.80}"
                )
            yield " ".join(map(_spelled, parts))


def _parts(token: bytes, ranks: Mapping[bytes, int], limit: int) -> list[bytes]:
    """The parts of `token` when all joins with ranks below `limit` are done."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 1:
        rank, at = min((ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1))
        if rank >= limit:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _spelled(token: bytes) -> str:
    return "".join([SPELLING[byte] for byte in token])
