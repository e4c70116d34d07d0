"""tiktoken's files (Kimi, Hunyuan) -> tokenizer model `gpt2`: lines of a token in base64 and its rank, which is its id.

tiktoken joins the two neighbours whose join has the lowest rank. So each token is made of the two that are left of its
bytes when all joins of lower ranks are done, and these pairs, in order of rank, are merges. How text is cut, and which
control tokens stand behind the ranks, is said by Python code beside the file, which is not run.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ollama_engine.convert.late_warnings import warn
from ollama_engine.convert.source.folder import ModelFolder
from ollama_engine.convert.vocab.tokens import AddedToken, TokenTable
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer.bpe import gpt2_alphabet
from ollama_engine.tokenizer.vocab import TokenType

__all__ = ["KINDS", "tiktoken_table"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankFile:
    """A published file of ranks."""

    file: str
    pre: str
    """The pre-tokenizer that cuts text for it."""
    family: str
    """What names of pre-tokenizers of its models begin with."""
    control: tuple[str, ...]
    """The control tokens behind the ranks, in which {id} stands for a token's own number."""
    bos: str = ""
    """The token that begins a text, where config.json names another one."""
    counted: bool = False
    """Whether a token's rank is the number of tokens before it, whatever the line says, and the first of two alike
    counts."""


KIMI = RankFile("tiktoken.model", "kimi-k2", "kimi", ("<|reserved_token_{id}|>",) * 258)
"""256, and two that tokenization_kimi.py adds."""
HUNYUAN = RankFile(
    "hy.tiktoken", "hunyuan", "hunyuan",
    ("<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *(f"<|extra_{i}|>" for i in range(205))),
    bos="<|bos|>", counted=True,
)  # fmt: skip
"""As tokenization_hy.py has it; llama.cpp's converter sets the same first token."""
KINDS = (KIMI, HUNYUAN)

SPELLING = [chr(code) for code in gpt2_alphabet()]
"""The character for each byte."""


def tiktoken_table(
    kind: RankFile,
    data: bytes,
    folder: ModelFolder,
    added: Iterable[AddedToken],
    pre_names: Iterable[str],
    n_vocab: int,
) -> TokenTable:
    """The rows for a file of that kind. Raises ModelFormatError when it is not as that format has it, and
    UnsupportedModelError for models of which it is not known how they cut text.
    """
    if not any(name.startswith(kind.family) for name in pre_names):
        raise UnsupportedModelError(
            f"{folder.path}: how a {kind.file} cuts text is known for models of {kind.family} alone"
        )
    home = str(folder.path / kind.file)
    ranks = _read(data, home, counted=kind.counted)
    table = TokenTable.empty("gpt2", kind.pre, n_vocab, scored=False)
    for token, rank in ranks.items():
        table.put(rank, _spelled(token), TokenType.NORMAL)
    for id_, text in enumerate(kind.control[: n_vocab - len(ranks)], len(ranks)):
        table.put(id_, text.format(id=id_), TokenType.CONTROL)
    for named in added:
        table.put(named.id, named.text, TokenType.CONTROL)
    if kind.bos in table.texts:
        table.flags["bos_token_id"] = table.texts.index(kind.bos)
    table.merges = list(_merges(ranks, home, counted=kind.counted))
    return table


def _read(data: bytes, home: str, *, counted: bool) -> dict[bytes, int]:
    """{token: rank}, in order of rank."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        try:
            text, rank = line.split()
            token = base64.b64decode(text, validate=True)
            ranks[token] = ranks.get(token, len(ranks)) if counted else int(rank)
        except (ValueError, binascii.Error):
            raise ModelFormatError(f"{home}: line {number} is no token in base64 and its rank: {line[:60]!r}") from None
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ModelFormatError(f"{home}: the ranks of {len(ranks)} tokens are not 0 to {len(ranks) - 1}, each once")
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise ModelFormatError(f"{home}: {len(missing)} single bytes are no tokens, such as 0x{missing[0]:02x}")
    return dict(sorted(ranks.items(), key=lambda entry: entry[1]))


def _merges(ranks: Mapping[bytes, int], home: str, *, counted: bool) -> Iterator[str]:
    """Of a file whose ranks were counted anew, tokens that no two others make are left out, as llama.cpp does it."""
    alone = []
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        parts = _parts(token, ranks, rank)
        if len(parts) == 2:
            yield " ".join(map(_spelled, parts))
        elif counted:
            alone.append(rank)
        else:
            raise ModelFormatError(f"{home}: token {rank} is not made of two with lower ranks, but of {parts!r:.80}")
    if alone:
        warn(logger, "%s: %d tokens are not made of two with lower ranks, such as %d; no text leads to them", home,
             len(alone), alone[0])  # fmt: skip


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
