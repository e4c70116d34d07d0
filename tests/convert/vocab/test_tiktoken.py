"""A tiktoken.model -> GGUF -> our tokenizer: the ids that tiktoken gives, and the table that a tokenizer.json has."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer import from_gguf
from ollama_engine.tokenizer.vocab import TokenType
from tests.convert.vocab.exporting import export
from tests.convert.vocab.test_bpe import trained

TOKENS = (
    " t", "he", " the", "in", "ing", " a", "er", "12", "123", "'l", "'ll", "\n\n", "  ", "    ", "ab", "bc", "abc",
    "abcd", "中", "文", "中文", "é", "né", "ße", "🦙",
)  # fmt: skip
"""Tokens behind the single bytes, each made of two before it; those of several bytes are joined from the left."""
TEXTS: dict[str, list[int]] = {
    "the ring of the bell, I'll say THE'LL": [
        244, 257, 160, 242, 260, 160, 239, 230, 258, 160, 226, 229, 236, 236, 172, 160, 201, 266, 160, 243, 225, 249,
        160, 212, 200, 197, 167, 204, 204
    ],
    "1234567 abcd abcde xabcd": [264, 180, 181, 182, 183, 261, 271, 228, 261, 271, 228, 229, 160, 248, 273],
    "中文 mixed中文字 né Straße\n\n\n    x\r\n": [
        280, 160, 237, 233, 248, 229, 228, 280, 101, 45, 23, 160, 283, 160, 211, 244, 242, 225, 285, 267, 138, 268,
        160, 160, 248, 141, 138
    ],
    "🦙🦙 \t  end  ": [288, 288, 160, 137, 160, 160, 229, 238, 228, 268],
}  # fmt: skip
"""A text, and its ids by tiktoken 0.14 with the pattern of tokenization_kimi.py."""
BY_DIGITS = {"1234567 abcd abcde xabcd": [177, 178, 179, 180, 181, 182, 183, *TEXTS["1234567 abcd abcde xabcd"][5:]]}
"""What is other with the pattern of tokenization_hy.py."""
NAMED = {"[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2}
"""Control tokens, counted from the last rank."""


def ranks() -> dict[bytes, int]:
    made = {bytes([byte]): byte for byte in (*range(128, 256), *range(128))}
    made = {token: rank for rank, token in enumerate(made)}
    for text in TOKENS:
        token = text.encode()
        starts = range(2, len(token) + 1) if not text.isascii() else (len(token),)
        for end in starts:
            made.setdefault(token[:end], len(made))
    return made


def written(tokens: dict[bytes, int]) -> bytes:
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in tokens.items())


def folder_files(tokens: dict[bytes, int]) -> dict[str, Any]:
    added = {str(len(tokens) + at): {"content": text, "special": text != "[BOS]"} for text, at in NAMED.items()}
    config = {"added_tokens_decoder": added, "bos_token": "[BOS]", "eos_token": "[EOS]"}
    return {"tiktoken.model": written(tokens), "tokenizer_config.json": config}


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_tiktoken(text: str, tmp_path: Path) -> None:
    export(tmp_path, folder_files(ranks()), 400, pre_names=["kimi-k2"])
    tokenizer = from_gguf(tmp_path / "vocab.gguf")
    assert tokenizer.encode(text, add_special=False) == TEXTS[text]
    assert tokenizer.decode(TEXTS[text]) == text


@pytest.mark.parametrize("text", TEXTS)
def test_ids_of_hunyuan_are_those_of_tiktoken(text: str, tmp_path: Path) -> None:
    """Ranks are counted, whatever the file says, and a token that comes again has its first one."""
    tokens = ranks()
    lines = written(tokens).splitlines(keepends=True)
    data = b"".join([*lines[:200], lines[3], *lines[200:]])
    export(tmp_path, {"hy.tiktoken": data}, 600, {"bos_token_id": 1}, pre_names=["hunyuan"])
    tokenizer = from_gguf(tmp_path / "vocab.gguf")
    ids = BY_DIGITS.get(text, TEXTS[text])
    assert tokenizer.encode(text, add_special=False) == ids
    assert tokenizer.decode(ids) == text


def test_control_tokens_of_hunyuan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A token that no others make is kept, with a warning: no text leads to it."""
    tokens = {**ranks(), b"xyz": len(ranks())}
    n = len(tokens)
    values = export(
        tmp_path, {"hy.tiktoken": written(tokens)}, n + 211, {"bos_token_id": 1}, pre_names=["hunyuan-dense"]
    )
    assert values["pre"] == "hunyuan"
    assert values["tokens"][n : n + 6] == [
        "<|endoftext|>",
        "<|startoftext|>",
        "<|bos|>",
        "<|eos|>",
        "<|pad|>",
        "<|extra_0|>",
    ]
    assert values["tokens"][-2:] == ["<|extra_204|>", f"[PAD{n + 210}]"]
    assert values["bos_token_id"] == n + 2
    assert f"1 tokens are not made of two with lower ranks, such as {n - 1}" in caplog.text


def test_control_tokens(tmp_path: Path) -> None:
    """All rows behind the ranks, 258 at most, as tokenization_kimi.py has them; and padding."""
    n = len(ranks())
    values = export(tmp_path, folder_files(ranks()), n + 260, {"eos_token_id": 5}, pre_names=["kimi-k2"])
    assert values["pre"] == "kimi-k2"
    assert values["tokens"][n : n + 4] == ["[BOS]", "[EOS]", "<|im_end|>", f"<|reserved_token_{n + 3}|>"]
    assert values["tokens"][-3:] == [f"<|reserved_token_{n + 257}|>", f"[PAD{n + 258}]", f"[PAD{n + 259}]"]
    assert list(values["token_type"][n:]) == [TokenType.CONTROL] * 258 + [TokenType.UNUSED] * 2
    assert (values["bos_token_id"], values["eos_token_id"]) == (n, n + 1), "names come before config.json"


def test_the_table_is_that_of_the_same_tokenizer_json(tmp_path: Path) -> None:
    """A vocabulary of 700 that the tokenizers library trained; its ids are ranks."""
    values = trained("llama-bpe")
    spelled = {text: id_ for text, id_ in values["model"]["vocab"].items() if id_ < 700}
    (tmp_path / "json").mkdir()
    (tmp_path / "ranks").mkdir()
    wanted = export(tmp_path / "json", {"tokenizer.json": values}, 700)
    made = export(tmp_path / "ranks", {"tiktoken.model": written(bytes_of(spelled))}, 700, pre_names=["kimi-k2"])
    assert made["tokens"] == wanted["tokens"]
    assert made["merges"] == wanted["merges"]


def bytes_of(spelled: dict[str, int]) -> dict[bytes, int]:
    """Tokens of a tokenizer.json as bytes, in order of their ids."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    byte = {chr(code): code for code in printable} | {chr(256 + i): code for i, code in enumerate(others)}
    return {bytes(map(byte.__getitem__, text)): id_ for text, id_ in sorted(spelled.items(), key=lambda item: item[1])}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"IQ== 0 1\n", "line 1 is no token in base64"),
        (b"*** 0\n", "line 1 is no token in base64"),
        (b"IQ== x\n", "line 1 is no token in base64"),
        (b"IQ== 0\nIg== 2\n", "the ranks of 2 tokens are not 0 to 1"),
        (b"IQ== 0\n", "255 single bytes are no tokens, such as 0x00"),
        (written({**ranks(), b"xyz": len(ranks())}), r"not made of two with lower ranks, but of \[b'x', b'y', b'z'\]"),
    ],
)
def test_broken_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=message):
        export(tmp_path, {"tiktoken.model": data}, 400, pre_names=["kimi-k2"])


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"how a tiktoken\.model cuts text"):
        export(tmp_path, {"tiktoken.model": written(ranks())}, 400)
