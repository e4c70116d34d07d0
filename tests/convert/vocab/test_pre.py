"""Pre-tokenizers are recognised by what they do."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from ollama_engine.convert.vocab.hf_splitting import make_split
from ollama_engine.convert.vocab.pre import find_pre
from ollama_engine.convert.vocab.probes import PROBES
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer.pretokenizer import PreTokenizer
from ollama_engine.tokenizer.pretokenizer_table import PreTokenizerSpec, Rule, find_spec, pretokenizer_names
from tests.support.suite import scaled
from tests.tokenizer.corpus import nasty_texts

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True}
SIMPLE = [
    name for name in pretokenizer_names()
    if find_spec(name).byte_level and all(s.rule in (Rule.FIND, Rule.ISOLATE) for s in find_spec(name).stages)
]  # fmt: skip


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*parts]}


def split(expression: str, behavior: str = "Isolated", **more: Any) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": False, **more}


def as_json(spec: PreTokenizerSpec) -> dict[str, Any]:
    """The pre_tokenizer and model of a tokenizer.json that cuts as a row of the table."""
    stages = [split(stage.expression) for stage in spec.stages]
    return {"pre_tokenizer": sequence(*stages, BYTES), "model": {"ignore_merges": spec.ignore_merges}}


def cuts(spec: PreTokenizerSpec, texts: list[str]) -> list[list[str]]:
    cut = PreTokenizer(spec).split
    return [cut(text) for text in texts]


@pytest.mark.parametrize("name", SIMPLE)
def test_every_row_of_the_table_is_found_again(name: str) -> None:
    spec = find_spec(name)
    found = find_spec(find_pre(as_json(spec), (), "tokenizer.json"))
    texts = nasty_texts(scaled(1500, quick=100), seed=3)
    assert cuts(found, texts) == cuts(spec, texts), found.name
    assert found.ignore_merges == spec.ignore_merges
    assert find_pre(as_json(spec), (name,), "tokenizer.json") == name


REAL = {
    "gpt-2": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "starcoder": sequence({"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}),
    "falcon": sequence(
        {"type": "Punctuation", "behavior": "Contiguous"},
        {"type": "ByteLevel", "use_regex": True},
        {"type": "Digits", "individual_digits": False},
        split("[0-9][0-9][0-9]"),
    ),
}


def test_forms_that_models_have() -> None:
    for name in ("gpt-2", "starcoder"):
        assert find_pre({"pre_tokenizer": REAL[name]}, (), "tokenizer.json") == name


def test_digits_may_be_cut_apart_where_no_token_joins_them() -> None:
    """As DeepSeek-V2's tokenizer.json does, for which llama.cpp's name is `deepseek-llm`."""
    stages = [split(stage.expression) for stage in find_spec("deepseek-llm").stages[:-1]]
    made = {"pre_tokenizer": sequence(*stages, {"type": "Digits", "individual_digits": True}, BYTES)}
    found = find_pre({**made, "model": {"vocab": {"1": 0, "2": 1, "a1": 2, "Ġ1": 3}}}, ("deepseek-llm",), "home")
    assert found == "deepseek-llm"
    for joined in ("12", "a12", "\u00c2\u00b2\u00c2\u00b3"):  # the last: two superscripts, byte by byte
        with pytest.raises(UnsupportedModelError, match="no pre-tokenizer known here"):
            find_pre({**made, "model": {"vocab": {"1": 0, joined: 1}}}, ("deepseek-llm",), "home")


PARTS = {
    **REAL,
    **{name: as_json(find_spec(name))["pre_tokenizer"] for name in ("llama-bpe", "tekken", "deepseek-v3", "gpt-4o")},
    "removed": split(r"\s+", "Removed"),
    "previous": split(r"\p{P}", "MergedWithPrevious"),
    "next": split(r"\p{P}", "MergedWithNext"),
    "contiguous": split(r"\p{P}|\s", "Contiguous"),
    "inverted": split(r"\p{L}+", "Removed", invert=True),
    "string": {"type": "Split", "pattern": {"String": "."}, "behavior": "Isolated", "invert": False},
    "white-space": {"type": "WhitespaceSplit"},
}


@pytest.mark.parametrize("name", PARTS)
def test_splitting_is_that_of_the_tokenizers_library(name: str) -> None:
    spec = PARTS[name]
    ours, theirs = make_split(spec, "tokenizer.json"), reference(spec)
    for text in [*PROBES, *nasty_texts(scaled(600, quick=100), seed=4)]:
        expected = [text[start:end] for _, (start, end) in theirs.pre_tokenize_str(text)]
        if text.isascii() or name != "falcon":  # which cuts inside of characters; offsets do not tell
            assert ours(text) == expected, repr(text)


def reference(spec: dict[str, Any]) -> pre_tokenizers.PreTokenizer:
    kinds = {"Isolated": "isolated", "Removed": "removed", "MergedWithPrevious": "merged_with_previous",
             "MergedWithNext": "merged_with_next", "Contiguous": "contiguous"}  # fmt: skip
    kind = spec["type"]
    if kind == "Sequence":
        return pre_tokenizers.Sequence([reference(part) for part in spec["pretokenizers"]])
    if kind == "Split":
        pattern = spec["pattern"]
        matcher = Regex(pattern["Regex"]) if "Regex" in pattern else pattern["String"]
        return pre_tokenizers.Split(matcher, kinds[spec["behavior"]], spec["invert"])
    if kind == "ByteLevel":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=spec.get("use_regex", True))
    if kind == "Digits":
        return pre_tokenizers.Digits(spec["individual_digits"])
    if kind == "Punctuation":
        return pre_tokenizers.Punctuation(kinds[spec["behavior"]])
    return pre_tokenizers.WhitespaceSplit()


def test_what_nobody_cuts_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"no pre-tokenizer known here cuts text as this one: .*\[aeiou\]"):
        find_pre({"pre_tokenizer": split("[aeiou]")}, (), "tokenizer.json")
    with pytest.raises(UnsupportedModelError, match="pre-tokenizer 'UnicodeScripts' is unknown here"):
        find_pre({"pre_tokenizer": {"type": "UnicodeScripts"}}, (), "tokenizer.json")
    with pytest.raises(ModelFormatError, match="pre_tokenizer is not as expected"):
        find_pre({"pre_tokenizer": {"type": "Split"}}, (), "tokenizer.json")
