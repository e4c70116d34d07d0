"""Special tokens: where text is cut, which ids end a generation, and what the text of a token changes."""

from __future__ import annotations

from typing import Any

import pytest

from ollama_engine.tokenizer import Tokenizer, from_metadata
from ollama_engine.tokenizer._texts import find_texts, only_texts
from tests.tokenizer.vocabs import ALPHABET, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, bpe_metadata


def make(*special: tuple[str, int], **keys: Any) -> Tokenizer:
    """Bytes are ids 0 ... 255, special tokens follow from 256."""
    return from_metadata(bpe_metadata(ALPHABET, special=special, **keys))


def text_ids(text: str) -> list[int]:
    return make().encode(text)


def test_wanted_texts_are_found_as_by_looking_at_each() -> None:
    wanted = {"<s>", "</s>", "▁<PRE>", "<｜end▁of▁sentence｜>", "[e~["}
    texts = ["", "<s>", "s", "<", "</s>x", "</s>", "▁", "▁<PRE>", "é", "[e~[", "<s>", "\udcff", "<｜end▁of▁sentence｜>"]
    assert find_texts(texts, wanted) == {text: i for i, text in enumerate(texts) if text in wanted}
    assert find_texts([], wanted) == find_texts(texts, set()) == {}


@pytest.mark.parametrize("values", [[], ["a", ""], ["a", 1], [None], [b"a"]])
def test_only_texts(values: list[object]) -> None:
    assert only_texts(values) == all(type(value) is str for value in values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<s>", [256]),
        ("<s><s>", [256, 256]),
        ("a<s>b", [*text_ids("a"), 256, *text_ids("b")]),
        ("<s>x", [257]),  # the longest
        ("<s><s>x", [256, 257]),
        ("<user>", [258]),
        ("<un>", [259]),
        ("<s", text_ids("<s")),
        ("<<s>>", [*text_ids("<"), 256, *text_ids(">")]),
    ],
)
def test_cut(text: str, expected: list[int]) -> None:
    tokenizer = make(("<s>", CONTROL), ("<s>x", CONTROL), ("<user>", USER_DEFINED), ("<un>", UNKNOWN))
    assert tokenizer.encode(text) == expected


def test_parse_special_off() -> None:
    tokenizer = make(("<s>", CONTROL), ("<user>", USER_DEFINED), ("<un>", UNKNOWN))
    for text in ("<s>", "<un>"):
        assert tokenizer.encode(text, parse_special=False) == text_ids(text)
    assert tokenizer.encode("a<user><s>", parse_special=False) == [*text_ids("a"), 257, *text_ids("<s>")]


def test_user_defined_runs_take_the_longest() -> None:
    tokenizer = make(*((" " * n, USER_DEFINED) for n in (2, 3, 4)))
    assert tokenizer.encode(" " * 9) == [258, 258, *text_ids(" ")]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"bos_token_id": 256, "eos_token_id": 257, "add_bos_token": True, "add_eos_token": True}, [256, 257]),
        ({"bos_token_id": 256, "eos_token_id": 257, "add_bos_token": True}, [256]),
        ({"bos_token_id": 256, "eos_token_id": 257}, []),
        ({"bos_token_id": 256, "pre": "llama-bpe"}, [256]),
        ({"bos_token_id": 256, "pre": "tekken"}, [256]),
        ({"bos_token_id": 256, "pre": "llama-bpe", "add_bos_token": False}, []),
        ({"pre": "llama-bpe"}, []),  # a default without a token adds nothing
    ],
)
def test_add_special(keys: dict[str, Any], expected: list[int]) -> None:
    tokenizer = make(("<s>", CONTROL), ("<e>", CONTROL), **keys)
    body = text_ids("a")
    assert tokenizer.encode("a", add_special=False) == body
    added = tokenizer.encode("a")
    assert added == [*(i for i in expected if i == 256), *body, *(i for i in expected if i == 257)]


def test_a_prompt_in_pieces_gets_one_bos() -> None:
    tokenizer = make(("<s>", CONTROL), bos_token_id=256, add_bos_token=True)
    whole = tokenizer.encode("one ") + tokenizer.encode("two", add_special=False)
    assert whole == [256, *text_ids("one two")]


ENDS: list[tuple[list[tuple[str, int]], dict[str, Any], set[str]]] = [
    ([("<|im_end|>", CONTROL), ("<|im_start|>", CONTROL)], {}, {"<|im_end|>"}),
    ([("<|eot_id|>", NORMAL)], {}, {"<|eot_id|>"}),
    ([("x", CONTROL), ("y", CONTROL), ("z", CONTROL)], {"eos_token_id": 256, "eos_token_ids": [256, 258]}, {"x", "z"}),
    ([("x", CONTROL), ("y", CONTROL)], {"eot_token_id": 257, "eom_token_id": 256}, {"x", "y"}),
    ([("x", CONTROL)], {"eos_token_id": 2**32 - 1}, set()),
    ([("<|return|>", CONTROL), ("<|call|>", CONTROL), ("<|end|>", CONTROL)], {}, {"<|return|>", "<|call|>"}),
    ([("<|flush|>", CONTROL), ("<|calls|>", CONTROL), ("<|end|>", CONTROL)], {}, {"<|flush|>", "<|calls|>"}),
    ([("<|return|>", CONTROL), ("<|end|>", CONTROL)], {}, {"<|return|>", "<|end|>"}),
    ([("<|tool_response>", CONTROL), ("</s>", CONTROL)], {}, {"<|tool_response>"}),
    ([("</s>", CONTROL)], {}, {"</s>"}),
    ([("</s>", NORMAL)], {}, set()),
    ([("<|fim_pad|>", NORMAL), ("<|repo_name|>", NORMAL), ("<|file_sep|>", NORMAL), ("<|fim_prefix|>", NORMAL)], {},
     {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}),
    ([("x", CONTROL), ("<|fim_pad|>", CONTROL)], {"fim_pad_token_id": 256}, {"x"}),
    ([("x", NORMAL)], {}, set()),
]  # fmt: skip


@pytest.mark.parametrize(("special", "keys", "expected"), ENDS)
def test_ends_of_generation(special: list[tuple[str, int]], keys: dict[str, Any], expected: set[str]) -> None:
    tokenizer = make(*special, **keys)
    assert {tokenizer.token_text(i) for i in tokenizer.eog_ids} == expected


def test_default_ids_count_only_for_special_tokens() -> None:
    assert make().eos_id is None  # id 11 is a comma here
    tokens = list(ALPHABET)
    metadata = bpe_metadata(tokens)
    metadata["tokenizer.ggml.token_type"][11] = CONTROL
    assert (from_metadata(metadata).bos_id, from_metadata(metadata).eos_id) == (11, 11)


def test_types_are_corrected() -> None:
    tokenizer = make(("<|im_end|>", NORMAL), ("<|channel|>", CONTROL), ("</s>", NORMAL))
    assert tokenizer.is_control(256)
    assert tokenizer.encode("<|im_end|>") == [256]
    assert not tokenizer.is_control(257)
    assert tokenizer.decode([257]) == "<|channel|>"
    assert tokenizer.encode("</s>") == text_ids("</s>")


def test_message_end_of_harmony_is_rendered() -> None:
    tokenizer = make(("<|return|>", CONTROL), ("<|call|>", CONTROL), ("<|end|>", CONTROL))
    assert tokenizer.decode([258]) == "<|end|>"


def test_phi3_swallows_white_space_after_special_tokens() -> None:
    metadata = bpe_metadata(ALPHABET, special=[("<|user|>", CONTROL), ("<s>", CONTROL)])
    metadata["general.name"] = "Phi-3-mini"
    tokenizer = from_metadata(metadata)
    assert tokenizer.encode("a <|user|> \n\u2003b") == [*text_ids("a "), 256, *text_ids("b")]
    assert tokenizer.encode("<|user|>  ") == [256]
    assert tokenizer.encode("<s> b") == [257, *text_ids(" b")]


@pytest.mark.parametrize(
    ("mask", "changes"),
    [
        ("<mask>", {"tokenizer.ggml.pre": "jina-v2-de"}),
        ("[MASK]", {"general.name": "modern-bert-base"}),
        ("<mask>", {"general.architecture": "jina-bert-v3"}),
    ],
)
def test_masks_swallow_white_space_before_them(mask: str, changes: dict[str, Any]) -> None:
    tokenizer = from_metadata({**bpe_metadata(ALPHABET, special=[(mask, CONTROL)]), **changes})
    assert tokenizer.encode(f"a \n{mask} b") == [*text_ids("a"), 256, *text_ids(" b")]
