"""Recognises a pre-tokenizer by what it does: a tokenizer.json's and those of our table cut the same texts.

llama.cpp's converter compares a hash of token ids instead, which knows only the vocabularies that someone listed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import regex

from ollama_engine.convert.vocab.hf_splitting import make_split
from ollama_engine.convert.vocab.probes import PROBES
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.tokenizer.bpe import gpt2_alphabet
from ollama_engine.tokenizer.pretokenizer import PreTokenizer
from ollama_engine.tokenizer.pretokenizer_table import PreTokenizerSpec, find_spec, pretokenizer_names

__all__ = ["find_pre"]

logger = logging.getLogger(__name__)

# Of names that behave alike, the ones that every llama.cpp knows.
COMMON = (
    "llama-bpe", "qwen2", "gpt-2", "gpt-4o", "tekken", "deepseek-llm", "deepseek-coder", "deepseek-v3", "starcoder",
    "dbrx", "glm4", "falcon", "default",
)  # fmt: skip


def find_pre(tokenizer: Mapping[str, Any], preferred: Sequence[str], home: str) -> str:
    """The `tokenizer.ggml.pre` that cuts text as a tokenizer.json does, and treats whole pieces alike.

    Of several names those in `preferred` come first. Raises UnsupportedModelError when none does.
    """
    split = make_split(tokenizer.get("pre_tokenizer"), home)
    model = tokenizer.get("model") or {}
    whole, marks_ends = bool(model.get("ignore_merges")), bool(model.get("end_of_word_suffix"))
    expected = [split(text) for text in PROBES]
    names = dict.fromkeys([*preferred, *COMMON, *pretokenizer_names()])
    specs = [spec for spec in map(find_spec, names) if spec.end_of_word == marks_ends]
    alike = [spec for spec in specs if _cuts_alike(spec, expected)]
    if not alike and not _joins_numbers(tokenizer):
        # DeepSeek-V2 takes digits apart, which `deepseek-llm` leaves to its vocabulary.
        alike = [spec for spec in specs if _cuts_alike(spec, expected, numbers=False)]
    if not alike:
        raise UnsupportedModelError(
            f"{home}: no pre-tokenizer known here cuts text as this one: {tokenizer.get('pre_tokenizer')!s:.300}; "
            f"known: {', '.join(pretokenizer_names())}"
        )
    exact = [spec for spec in alike if spec.ignore_merges == whole]
    if not exact:  # in a vocabulary that merging can reach, the two give the same tokens
        logger.info("%s: pieces that are tokens are treated as %s has it", home, alike[0].name)
    return (exact or alike)[0].name


def _cuts_alike(spec: PreTokenizerSpec, expected: Sequence[list[str]], *, numbers: bool = True) -> bool:
    """Whether the texts are cut as expected; without `numbers`, wherever that is between two numerals."""
    if not spec.byte_level:
        return False
    cut = PreTokenizer(spec).split
    same: Callable[[list[str]], list[str]] = list if numbers else _numerals_apart
    return all(same(cut(text)) == same(pieces) for text, pieces in zip(PROBES, expected, strict=True))


def _numerals_apart(pieces: list[str]) -> list[str]:
    return [part for piece in pieces for part in (piece if regex.fullmatch(r"\p{N}+", piece) else (piece,))]


def _joins_numbers(tokenizer: Mapping[str, Any]) -> bool:
    """Whether some token holds two numerals side by side, so that cuts between them change what a text becomes."""
    bytes_of = {code: byte for byte, code in enumerate(gpt2_alphabet())}
    spelled = [text.translate(bytes_of) for text in (tokenizer.get("model") or {}).get("vocab") or {}]
    texts = (text.encode("latin-1", "ignore").decode(errors="ignore") for text in spelled)
    return any(regex.search(r"\p{N}\p{N}", text) for text in texts)
