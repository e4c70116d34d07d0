"""Runs the `pre_tokenizer` of a tokenizer.json, as far as byte-level BPE vocabularies use it.

Only the cutting is done here: a piece stays text, where the original goes on to spell its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import regex

from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer.bpe import gpt2_alphabet

__all__ = ["Split", "make_split"]

Split = Callable[[str], list[str]]

# tokenizers' ByteLevel, which is GPT-2's.
BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PUNCTUATION = r"[\p{P}!-/:-@\[-`{-~]"
BEHAVIORS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")


def make_split(spec: Mapping[str, Any] | None, home: str) -> Split:
    """Text -> pieces. Raises UnsupportedModelError for a kind that is unknown here."""
    if spec is None:
        return lambda text: [text]
    try:
        return _make(spec, home)
    except (KeyError, TypeError, AttributeError, regex.error) as error:
        raise ModelFormatError(f"{home}: pre_tokenizer is not as expected: {error!r}") from None


def _make(spec: Mapping[str, Any], home: str) -> Split:
    kind = spec["type"]
    if kind == "Sequence":
        return _chain(_stages(spec["pretokenizers"], home))
    if kind == "ByteLevel" and not spec.get("use_regex", True):
        return lambda text: [text]
    if kind == "Split":
        pattern = spec["pattern"]
        expression = pattern["Regex"] if "Regex" in pattern else regex.escape(pattern["String"])
        return _splitter(expression, spec["behavior"], invert=bool(spec.get("invert")))
    simple = {
        "ByteLevel": (BYTE_LEVEL, "Isolated"),
        "Digits": (r"\p{N}" if spec.get("individual_digits") else r"\p{N}+", "Isolated"),
        "Punctuation": (PUNCTUATION, spec.get("behavior", "Isolated")),
        "WhitespaceSplit": (r"\s", "Removed"),
    }
    if kind not in simple:
        raise UnsupportedModelError(f"{home}: pre-tokenizer {kind!r} is unknown here; its text cannot be split alike")
    return _splitter(*simple[kind])


def _stages(specs: Sequence[Mapping[str, Any]], home: str) -> list[Split]:
    """The splits in order. Those behind a ByteLevel see its output: one printable character for each byte."""
    kinds = [spec["type"] for spec in specs]
    first = kinds.index("ByteLevel") if "ByteLevel" in kinds else len(kinds)
    made = [_make(spec, home) for spec in specs]
    return [_on_bytes(part) if i > first else part for i, part in enumerate(made)]


def _on_bytes(split: Split) -> Split:
    alphabet = [chr(code) for code in gpt2_alphabet()]
    values = {character: byte for byte, character in enumerate(alphabet)}

    def on_bytes(text: str) -> list[str]:
        spelled = "".join(alphabet[byte] for byte in text.encode("utf-8", "surrogateescape"))
        pieces = (bytes(values[character] for character in piece) for piece in split(spelled))
        return [piece.decode("utf-8", "surrogateescape") for piece in pieces]

    return on_bytes


def _chain(parts: list[Split]) -> Split:
    def split(text: str) -> list[str]:
        pieces = [text]
        for part in parts:
            pieces = [piece for old in pieces for piece in part(old)]
        return pieces

    return split


def _splitter(expression: str, behavior: str, *, invert: bool = False) -> Split:
    if behavior not in BEHAVIORS:
        raise KeyError(behavior)
    compiled = regex.compile(expression)

    def split(text: str) -> list[str]:
        return [piece for piece in _behave(_spans(compiled, text, invert), behavior) if piece]

    return split


def _spans(compiled: Any, text: str, invert: bool) -> list[tuple[str, bool]]:
    """(piece, whether it is a delimiter): matches, or with `invert` what lies between them."""
    spans: list[tuple[str, bool]] = []
    at = 0
    for match in compiled.finditer(text):
        if match.start() > at:
            spans.append((text[at : match.start()], invert))
        if match.end() > match.start():
            spans.append((match[0], not invert))
        at = match.end()
    if at < len(text):
        spans.append((text[at:], invert))
    return spans


def _behave(spans: list[tuple[str, bool]], behavior: str) -> list[str]:
    if behavior == "Isolated":
        return [piece for piece, _ in spans]
    if behavior == "Removed":
        return [piece for piece, delimiter in spans if not delimiter]
    if behavior == "MergedWithPrevious":
        return _merged(spans, lambda before, now: now and not before)
    if behavior == "MergedWithNext":
        return _merged(spans, lambda before, now: before and not now)
    return _merged(spans, lambda before, now: before == now)


def _merged(spans: list[tuple[str, bool]], joins: Callable[[bool, bool], bool]) -> list[str]:
    pieces: list[str] = []
    before: bool | None = None
    for piece, delimiter in spans:
        if before is not None and joins(before, delimiter):
            pieces[-1] += piece
        else:
            pieces.append(piece)
        before = delimiter
    return pieces
