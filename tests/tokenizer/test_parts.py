"""A text in parts: the ids of the whole, and control tokens only of parts in which they are parsed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.tokenizer import Tokenizer, from_metadata
from tests.support.suite import scaled
from tests.tokenizer.vocabs import CONTROL, USER_DEFINED, bpe_metadata, spm_metadata, train_bpe, train_spm

SPECIAL = [("<s>", CONTROL), ("<|end|>", CONTROL), ("<|en", CONTROL), ("<think>", USER_DEFINED), ("\n\n", USER_DEFINED),
           ("<table>", USER_DEFINED), ("<|channel|>", CONTROL), ("<|user|>", USER_DEFINED)]  # fmt: skip
LINES = ["the word of the day is a word, and a day is the other word."] * 20 + ["A small text! 1 2 3; the end."] * 9
TEMPLATE = "{{ '<think>' }}{{ '\\n\\n' }}"
PIECES = ["<s>", "<|end|>", "<|en", "d|>", "<think>", "<", "think>", "\n", "\n\n", " ", "a", "word", "the ", "<table>",
          "<|channel|>", "<|user|>", "é", "\x00"]  # fmt: skip


def bpe() -> Tokenizer:
    tokens, merges = train_bpe(LINES, 300)
    metadata = bpe_metadata(
        tokens, merges, special=SPECIAL, bos_token_id=len(tokens), eos_token_id=len(tokens) + 1, add_bos_token=True
    )
    return from_metadata({**metadata, "tokenizer.chat_template": TEMPLATE})


def spm(**keys: Any) -> Tokenizer:
    special = {
        "control_symbols": ["<|end|>", "<|channel|>"],
        "user_defined_symbols": ["<think>", "<table>", "<|user|>"],
    }
    metadata = spm_metadata(train_spm(LINES, 340, **special), user_defined=["<think>", "<table>", "<|user|>"])
    return from_metadata({**metadata, "tokenizer.chat_template": TEMPLATE, **keys})


TOKENIZERS = {"bpe": bpe(), "spm": spm(), "spm that strips": spm(**{"general.name": "phi-3"})}
"""Phi-3's control tokens swallow the white space behind them."""


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=scaled(3_000, quick=300))
@given(parts=st.lists(st.tuples(st.lists(st.sampled_from(PIECES), max_size=4).map("".join), st.booleans()), max_size=6))
def test_any_parts(name: str, parts: list[tuple[str, bool]]) -> None:
    tokenizer, text = TOKENIZERS[name], "".join(text for text, _ in parts)
    ids = tokenizer.encode_parts(parts)
    everything = tokenizer.encode_parts([(text, True) for text, _ in parts])
    assert everything == tokenizer.encode(text), "wherever it is cut"
    assert tokenizer.encode_parts([(text, False) for text, _ in parts]) == tokenizer.encode(text, parse_special=False)
    trusted = "".join(text if on else "\0" * len(text) for text, on in parts)
    for id_ in {id_ for id_ in ids[1:] if tokenizer.is_steering(id_)}:
        assert ids[1:].count(id_) <= trusted.count(tokenizer.token_text(id_))
    parsed = "".join(("x" if on else " ") * len(text.encode()) for text, on in parts)
    begin = 0
    if name == "bpe":  # whose tokens are bytes of the text
        for id_ in ids[1:]:
            end = begin + len(tokenizer.token_bytes(id_, skip_special=False))
            assert not tokenizer.is_steering(id_) or " " not in parsed[begin:end]
            begin = end
        assert begin == len(text.encode())
    untrusted = [text for text, on in parts if not on]
    if not any("<" in text or ">" in text for text in untrusted):
        assert ids == everything or name != "bpe" or "\n" in text, "harmless text changes nothing"


def test_tokens_that_steer() -> None:
    tokenizer = TOKENIZERS["bpe"]
    steering = {text for text, _ in SPECIAL if tokenizer.is_steering(tokenizer.encode(text, add_special=False)[0])}
    assert steering == {"<s>", "<|end|>", "<|en", "<think>", "<|channel|>", "<|user|>"}
    typed = tokenizer.encode("<think>\n\n<table><|channel|><|user|>", add_special=False, parse_special=False)
    assert [text for text, _ in SPECIAL if tokenizer.encode(text, add_special=False)[0] in typed] == ["\n\n", "<table>"]
    assert tokenizer.decode(typed) == "<think>\n\n<table><|channel|><|user|>"


def test_an_untrusted_token_hides_no_trusted_one() -> None:
    """The longest match at a place may be untrusted, and the trusted token inside of it is found all the same."""
    tokenizer = TOKENIZERS["bpe"]
    (end,), (begin,) = (tokenizer.encode(text, add_special=False) for text in ("<|end|>", "<|en"))
    assert tokenizer.encode_parts([("<|en", True), ("d|>", False)], add_special=False)[0] == begin
    assert end in tokenizer.encode_parts([("<|en", False), ("<|end|>", True)], add_special=False)
    assert begin not in tokenizer.encode_parts([("<|en", False), ("<|end|>", True)], add_special=False)
