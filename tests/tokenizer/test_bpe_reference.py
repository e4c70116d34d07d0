"""Byte-level BPE against the `tokenizers` library, on a vocabulary trained here."""

from __future__ import annotations

import random

import pytest
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers import pre_tokenizers as hf

from ollama_engine.tokenizer import from_metadata
from ollama_engine.tokenizer.pretokenizer_table import Rule, find_spec, pretokenizer_names
from tests.tokenizer.corpus import wild_texts
from tests.tokenizer.vocabs import CONTROL, USER_DEFINED, bpe_metadata, hf_bpe

Vocab = tuple[list[str], list[str]]


def split(*expressions: str) -> list[hf.PreTokenizer]:
    return [hf.Split(Regex(expression), "isolated") for expression in expressions]


X = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

# Pre-tokenizers as the models' own tokenizer.json has them, written down without looking at our table.
ORIGINALS: dict[str, list[hf.PreTokenizer]] = {
    "gpt-2": [hf.ByteLevel(add_prefix_space=False, use_regex=True)],
    "starcoder": [hf.Digits(individual_digits=True), hf.ByteLevel(add_prefix_space=False, use_regex=True)],
    "llama-bpe": split(
        rf"{X}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{TAIL}",
    ),
    "qwen2": split(rf"{X}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{TAIL}"),
    "qwen35": split(
        rf"{X}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{TAIL}"
    ),
    "tekken": split(rf"{UPPER}*{LOWER}+|{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TAIL}"),
    "gpt-4o": split(
        rf"{UPPER}*{LOWER}+{X}?|{UPPER}+{LOWER}*{X}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TAIL}"
    ),
    "tiny_aya": split(
        r"\d{1,3}(?=(?:\d{3})*\b)",
        rf"{UPPER}*{LOWER}+{X}?|{UPPER}+{LOWER}*{X}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{TAIL}",
    ),
    "superbpe": split(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "deepseek-v3": split(
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        rf"|{TAIL}",
    ),
    "deepseek-coder": split(
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"
    ),
    "bailingmoe": split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "seed-coder": split(rf"{X}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{TAIL}"),
    "bloom": split(r" ?[^(\s|.,!?…。，、।۔،)]+"),
}  # fmt: skip


GROUPED = ("afmoe",)
SPECIALS = (("<|begin|>", CONTROL), ("<|end|>", CONTROL), ("[INST]", CONTROL), ("<think>", USER_DEFINED),
            ("<th", USER_DEFINED))  # fmt: skip


def reference(vocab: Vocab, pre: list[hf.PreTokenizer], *, ignore_merges: bool) -> Tokenizer:
    tokenizer = hf_bpe(*vocab, ignore_merges=ignore_merges)
    if not isinstance(pre[-1], hf.ByteLevel):
        pre = [*pre, hf.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = hf.Sequence(pre)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text, _ in SPECIALS])
    return tokenizer


def check(vocab: Vocab, name: str, pre: list[hf.PreTokenizer], seed: int) -> None:
    ours = from_metadata(bpe_metadata(*vocab, special=SPECIALS, pre=name))
    theirs = reference(vocab, pre, ignore_merges=find_spec(name).ignore_merges)
    for text in wild_texts(seed, tuple(text for text, _ in SPECIALS)):
        ids = ours.encode(text, add_special=False)
        assert ids == theirs.encode(text).ids, text
        assert ours.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("name", ORIGINALS)
def test_original(bpe_vocab: Vocab, name: str) -> None:
    check(bpe_vocab, name, ORIGINALS[name], seed=1)


def oniguruma(name: str) -> list[hf.PreTokenizer] | None:
    """Our table's expressions, run by the other library's engine."""
    stages = find_spec(name).stages
    if any(stage.rule not in (Rule.FIND, Rule.ISOLATE) for stage in stages):
        return None
    return split(*(stage.expression.removeprefix("(?V1)").replace(r"(?<!\s)\s+\Z", r"\s+$") for stage in stages))


def distinct() -> list[str]:
    """One name per distinct list of stages that the other engine can run, and that is not compared above."""
    compared = {find_spec(name).stages for name in ORIGINALS}
    names = {find_spec(n).stages: n for n in pretokenizer_names() if find_spec(n).byte_level and oniguruma(n)}
    return sorted(name for stages, name in names.items() if stages not in compared)


def grouped(name: str) -> list[hf.PreTokenizer]:
    """Its digits in threes from the right, said with look-ahead; the rest as in our table."""
    stages = [stage.expression for stage in find_spec(name).stages if stage.rule is not Rule.GROUP]
    return split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", *stages)


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_digits(bpe_vocab: Vocab, name: str) -> None:
    check(bpe_vocab, name, grouped(name), seed=2)


def original(name: str) -> list[hf.PreTokenizer]:
    """The expressions that a name is compared with, of the model's own tokenizer where they are known."""
    stages = find_spec(name).stages
    own = next((pre for other, pre in ORIGINALS.items() if find_spec(other).stages == stages), None)
    found = own or (grouped(name) if name in GROUPED else oniguruma(name))
    assert found is not None, name
    return found


def test_every_row_of_the_table_is_compared() -> None:
    compared = {find_spec(name).stages for name in (*ORIGINALS, *distinct(), *GROUPED)}
    specs = {name: find_spec(name) for name in pretokenizer_names()}
    # Those with ends of words are CLIP's: tests/convert/vocab/test_clip.py.
    theirs = [name for name, spec in specs.items() if spec.byte_level and not spec.end_of_word]
    assert [name for name in theirs if specs[name].stages not in compared] == []


@pytest.mark.parametrize("name", distinct())
def test_same_expressions_in_oniguruma(bpe_vocab: Vocab, name: str) -> None:
    pre = oniguruma(name)
    assert pre is not None
    check(bpe_vocab, name, pre, seed=2)


@pytest.mark.parametrize(("alphabet", "pre"), [("abc", "gpt-2"), ("ab▁", "sarvam-moe")])
def test_merges_of_random_vocabularies(alphabet: str, pre: str) -> None:
    """Merge order on small alphabets, where ties and stale pairs are everywhere; tokens with inner spaces, too."""
    rng = random.Random(7)
    for _ in range(150):
        tokens = list(alphabet)
        merges = []
        while len(tokens) < rng.randrange(4, 30):
            left, right = rng.choices(tokens, k=2)
            if left + right not in tokens:
                tokens.append(left + right)
                merges.append(f"{left} {right}")
        ours = from_metadata(bpe_metadata(tokens, merges, pre=pre))
        theirs = hf_bpe(tokens, merges)
        for _ in range(30):
            text = "".join(rng.choices(alphabet, k=rng.randrange(1, 60)))
            assert ours.encode(text, add_special=False) == theirs.encode(text).ids
