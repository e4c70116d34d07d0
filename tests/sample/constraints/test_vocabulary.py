"""Vocabularies of every kind, as llguidance is told them: bytes of tokens, which are no text, what forced text gets."""

from __future__ import annotations

import numpy as np
import pytest
import sentencepiece

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.compiler import GrammarCompiler
from ollama_engine.sample.constraints.formats import Lark, Regex
from ollama_engine.sample.constraints.matcher import GrammarConstraint
from ollama_engine.tokenizer import Tokenizer, from_metadata
from tests.tokenizer.corpus import nasty_texts, prose
from tests.tokenizer.test_wordpiece import tokenizer as wordpiece
from tests.tokenizer.vocabs import ALPHABET, CONTROL, USER_DEFINED, bpe_metadata, spm_metadata, train_bpe, train_spm

CORPUS = [*nasty_texts(400, seed=8), prose(20_000)]
TEXTS = ['{"first name": "Äpfel und 日本", "x": [1, 2]}', "the small thing's the  thing\n\n\tend ", "e", " e", ". ,"]
SPECIAL = [("<|end|>", CONTROL), ("<|tool_call|>", CONTROL), ("<|tool|>", USER_DEFINED), ("    ", USER_DEFINED)]


def byte_pairs() -> Tokenizer:
    tokens, merges = train_bpe(CORPUS, 600)
    return from_metadata(bpe_metadata(tokens, merges, special=SPECIAL, eos_token_id=len(tokens)))


def sentence_pieces() -> Tokenizer:
    model: sentencepiece.SentencePieceProcessor = train_spm(CORPUS, 900, hard_vocab_limit=False)
    return from_metadata(spm_metadata(model))


def unigrams() -> Tokenizer:
    model = train_spm(CORPUS, 900, model_type="unigram", hard_vocab_limit=False)
    metadata = spm_metadata(model)
    return from_metadata(metadata | {"tokenizer.ggml.model": "t5"})


def no_end_token() -> Tokenizer:
    return from_metadata(bpe_metadata([*ALPHABET, "ab"], ["a b"], eos_token_id=10_000))


KINDS = {
    "byte pairs": byte_pairs,
    "sentence pieces": sentence_pieces,
    "unigrams": unigrams,
    "word pieces": wordpiece,
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]()


def allowed(constraint: GrammarConstraint) -> set[int]:
    bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
    return set(map(int, np.flatnonzero(bits)))


def test_tokens_of_a_text_are_accepted(tokenizer: Tokenizer) -> None:
    """Those that the tokenizer makes of it, where they spell it."""
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False, parse_special=False, continues=True)
        spelled = b"".join(map(tokenizer.token_bytes, ids))
        if spelled != text.encode():
            continue  # word pieces know lower case and a few characters only
        constraint = compiler.constraint(Regex("(?s:.)*"))
        for token in ids:
            assert token in allowed(constraint)
            constraint.accept(token)
        assert tokenizer.eog_ids & allowed(constraint) == tokenizer.eog_ids


def test_free_text_allows_what_is_text(tokenizer: Tokenizer) -> None:
    constraint = GrammarCompiler(tokenizer, tokenizer.n_vocab).constraint(Regex("(?s:.)*"))
    for token in allowed(constraint) - tokenizer.eog_ids:
        assert not tokenizer.is_steering(token)
        assert tokenizer.token_bytes(token)


@pytest.mark.parametrize("kind", ["byte pairs", "sentence pieces", "unigrams"])
def test_forced_text_gets_the_tokens_of_the_tokenizer(kind: str) -> None:
    tokenizer = KINDS[kind]()
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    for text in ("the small house and the river", '{"name": ', "    four", "Äpfel 日本"):
        constraint = compiler.constraint(Regex("".join(f"\\x{{{ord(c):X}}}" for c in text)))
        expected = tokenizer.encode(text, add_special=False, parse_special=False, continues=True)
        found = list(constraint.forced)
        while not constraint.ended:
            token = constraint.forced[0] if constraint.forced else next(iter(allowed(constraint)))
            constraint.accept(token)
        assert found == expected[: len(found)]
        assert len(found) >= len(expected) - 1


def test_control_tokens_are_named() -> None:
    tokenizer = byte_pairs()
    names = {tokenizer.token_text(i): i for i in range(tokenizer.n_vocab)}
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    for name in ("<|tool_call|>", "<|tool|>"):
        constraint = compiler.constraint(Lark(f'start: {name} "x" | "y"'))
        assert names[name] in allowed(constraint)
        constraint.accept(names[name])
        assert list(constraint.forced) or allowed(constraint) == {names["x"]}
    by_number = compiler.constraint(Lark(f"start: <[{names['<|tool|>']}]>"))
    assert list(by_number.forced) == [names["<|tool|>"]]


def test_free_text_until_a_marker_begins_a_grammar() -> None:
    """How `tool_choice` "auto" asks: text, or text and a call, or a call."""
    tokenizer = byte_pairs()
    names = {tokenizer.token_text(i): i for i in range(tokenizer.n_vocab)}
    schema = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    grammar = f"start: TEXT | TEXT? call+\nTEXT: /(?s:.)+/\ncall: <|tool_call|> arguments\narguments: %json {schema}"
    constraint = GrammarCompiler(tokenizer, tokenizer.n_vocab).constraint(Lark(grammar))
    end, marker = names["<|end|>"], names["<|tool_call|>"]
    for token in tokenizer.encode("Let me see. {", add_special=False, parse_special=False):
        constraint.accept(token)
        assert {end, marker} <= allowed(constraint)
        assert names["<|tool|>"] not in allowed(constraint)
    constraint.accept(marker)
    assert end not in allowed(constraint)
    for token in tokenizer.encode('{"a": 12}', add_special=False, parse_special=False, continues=True):
        assert token in allowed(constraint)
        constraint.accept(token)
    assert allowed(constraint) == {end, marker}


def test_a_vocabulary_without_an_end_token() -> None:
    tokenizer = no_end_token()
    assert not tokenizer.eog_ids
    compiler = GrammarCompiler(tokenizer, tokenizer.n_vocab)
    constraint = compiler.constraint(Regex("ab[0-9]"))
    for token in tokenizer.encode("ab7", add_special=False):
        assert not constraint.ended
        assert token in allowed(constraint)
        constraint.accept(token)
    assert constraint.ended


def test_a_model_with_fewer_outputs_than_tokens() -> None:
    tokenizer = byte_pairs()
    n_vocab = tokenizer.n_vocab - 3
    compiler = GrammarCompiler(tokenizer, n_vocab)
    constraint = compiler.constraint(Regex("(?s:.)*"))
    assert max(allowed(constraint)) < n_vocab
    assert len(constraint.mask()) == (n_vocab + 31) // 32


@pytest.mark.parametrize(
    ("schema", "pointer", "keyword"),
    [
        ({"const": "a\U00050000"}, "", "const"),
        ({"properties": {"x": {"enum": ["b", ["c", {"\U00050000": 1}]]}}}, "/properties/x", "enum"),
        ({"properties": {"\U00050000": {"type": "null"}}}, "", "properties"),
        ({"type": "object", "required": ["\U00050000"]}, "", "required"),
        ({"$defs": {"deep": {"const": "\U00050000"}}, "$ref": "#/$defs/deep"}, "/$defs/deep", "const"),
    ],
)
def test_what_the_vocabulary_cannot_write_is_refused_before_it_is_begun(
    schema: dict[str, object], pointer: str, keyword: str
) -> None:
    # As in SmolLM2, which has no token for the byte F1.
    lacking = from_metadata(bpe_metadata([c for c in ALPHABET if c != "ñ"], [], special=SPECIAL, eos_token_id=255))
    compiler = GrammarCompiler(lacking, lacking.n_vocab)
    with pytest.raises(GrammarError, match="the model's vocabulary has no tokens for") as caught:
        compiler.constraint(schema)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)
    compiler.constraint({"const": "aé\U0001f600"})
