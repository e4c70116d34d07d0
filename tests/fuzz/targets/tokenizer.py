"""Texts to ids and back, with a vocabulary of each kind. The first byte says which, the second how."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ollama_engine.errors import TokenizerError
from ollama_engine.tokenizer import Tokenizer, from_metadata
from tests.support.tiny import byte_characters

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, _, BYTE = range(1, 7)

WORDS = (
    b"<s>", b"</s>", b"<|x|>", b"\xe2\x96\x81", b"'s", b"'LL", b"\r\n", b"\xcc\x81", b"\xe4\xb8\xad",
    b"\xf0\x9f\xa6\x8a", b"\xe2\x80\x8d", b"\xed\xa0\x80",
    b"\xef\xbf\xbd", b"123456", b"   ", b"\t \n", b"\0", b"\xc2\xa0", b"\xe1\x84\x80",
)  # fmt: skip
PRE = ("gpt-2", "llama-bpe", "qwen2", "deepseek-llm", "tekken", "gpt-4o")
TEXTS = (
    "Hello world", "  two  spaces\n\nand\tlines \r\n", "it's WE'LL 12345 ٣٤٥", "naïve café e\u0301",
    "中文かな한국어", "🦊👩‍👩‍👧", "<s>a</s><|x|>", "x = [1, 2]; // ok", "\u200b\ufeff\u00a0", "",
)  # fmt: skip


def vocabularies(*, brief: bool = False) -> dict[str, dict[str, Any]]:
    """Metadata of small vocabularies. `brief`: few tokens, for headers that are damaged."""
    marks = ["<s>", "</s>", "<|x|>"]
    kinds = [CONTROL, CONTROL, USER_DEFINED]
    words = ["he", "ll", "hell", "o", "wo", "rl", "th", "the", "12", "\u4e2d"]
    found: dict[str, dict[str, Any]] = {}
    letters = list("helo wrdt12") if brief else byte_characters()
    merges = ["h e", "l l", "he ll", "w o", "r l", "t h", "th e", "1 2", "Ġ t", "Ġ h"]
    joined = [merge.replace(" ", "") for merge in merges]
    for pre in PRE[: 1 if brief else None]:
        tokens = [*dict.fromkeys([*letters, "Ġ", *joined]), *marks]
        found[pre] = _metadata("gpt2", tokens, [NORMAL] * (len(tokens) - 3) + kinds, merges=merges, pre=pre)
    bytes_ = [] if brief else [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*dict.fromkeys(["▁", "▁the", "▁he", *words, *"helorwdt12é"])]
    tokens = ["<unk>", *marks, *bytes_, *pieces]
    types = [UNKNOWN, *kinds, *[BYTE] * len(bytes_), *[NORMAL] * len(pieces)]
    scores = [-float(i) for i in range(len(tokens))]
    found["spm"] = _metadata("llama", tokens, types, scores=scores, add_space_prefix=True)
    found["unigram"] = _metadata("t5", tokens, types, scores=scores)
    known = ["[UNK]", "[CLS]", "[SEP]", *(f"▁{w}" for w in ("the", "he", "o")), *words, *"helorwdt12é,."]
    known = [*dict.fromkeys(known)]
    found["wordpiece"] = _metadata("bert", known, [CONTROL] * 3 + [NORMAL] * (len(known) - 3), unknown_token_id=0)
    return found


def _metadata(model: str, tokens: list[str], types: list[int], **keys: Any) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def check_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode and decode; raises AssertionError where a promise does not hold. Returns the ids."""
    ids = tokenizer.encode(text)
    assert all(0 <= i < tokenizer.n_vocab for i in ids)
    for skip in (False, True):
        stream = tokenizer.detokenizer(skip_special=skip)
        assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer.decode(ids, skip_special=skip)
    return ids


def seeds() -> Iterable[bytes]:
    for i in range(len(vocabularies())):
        for j, text in enumerate(TEXTS):
            yield bytes([i, j]) + text.encode()


@contextmanager
def opened(folder: Path) -> Iterator[Callable[[bytes], bool]]:
    made = [(name, from_metadata(metadata)) for name, metadata in vocabularies().items()]

    def run(data: bytes) -> bool:
        if len(data) < 2:
            return False
        name, tokenizer = made[data[0] % len(made)]
        text = _text(data)
        try:
            ids = check_text(tokenizer, text)
        except TokenizerError:
            return False
        plain = tokenizer.encode_parts([(text, False)], add_special=False)
        if name in PRE:  # byte-level: every byte comes back
            assert tokenizer.decode_bytes(plain, skip_special=False) == text.encode("utf-8", "replace")
        if name != "wordpiece":  # where what is unknown becomes a control token
            assert not any(map(tokenizer.is_control, plain)), "control tokens in text that is not trusted"
        cut = len(text) // 2
        parts = [(text[:cut], bool(data[1] & 2)), (text[cut:], bool(data[1] & 4))]
        assert all(0 <= i < tokenizer.n_vocab for i in tokenizer.encode_parts(parts))
        numbers = [byte * 7 % tokenizer.n_vocab for byte in data[2:]]
        stream = tokenizer.detokenizer()
        assert "".join([*map(stream.push, numbers), stream.flush()]) == tokenizer.decode(numbers)
        return bool(ids)

    yield run


def _text(data: bytes) -> str:
    """Lone surrogates may be in it."""
    try:
        return data[2:].decode("utf-8", "surrogatepass" if data[1] & 1 else "replace")
    except UnicodeDecodeError:
        return data[2:].decode("utf-8", "replace")
