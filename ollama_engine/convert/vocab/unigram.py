"""Unigram of a tokenizer.json (T5, XLM-R and what was made of them) -> tokenizer model `t5`.

A file lists steps that normalize and cut text; GGUF has three facts for them: the table of replacements, whether spaces
are squeezed, and whether a space comes before the text. Steps that mean nothing else are translated, others refused.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ollama_engine.convert.vocab.tokens import AddedToken, TokenTable
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer.vocab import TokenType

__all__ = ["unigram_table"]

logger = logging.getLogger(__name__)

SPACE = "▁"


def unigram_table(tokenizer: Mapping[str, Any], added: Iterable[AddedToken], n_vocab: int, home: str) -> TokenTable:
    """The rows for a tokenizer.json whose model is Unigram.

    Raises ModelFormatError when it is not as that format has it, UnsupportedModelError for steps that GGUF cannot say.
    """
    model = tokenizer["model"]
    unknown, spells = model.get("unk_id"), bool(model.get("byte_fallback"))
    table = TokenTable.empty("t5", "default", n_vocab, scored=True)
    for id_, (text, score) in enumerate(_entries(model, home)):
        kind = TokenType.BYTE if spells and _is_byte(text) else TokenType.NORMAL
        table.put(id_, text, TokenType.UNKNOWN if id_ == unknown else kind, score)
    table.put_added(token for token in added if token.id != unknown)
    if unknown is not None:
        table.flags["unknown_token_id"] = unknown
    table.flags |= _read_steps(tokenizer, home).flags()
    return table


def _entries(model: Mapping[str, Any], home: str) -> Iterator[tuple[str, float]]:
    entries = model.get("vocab")
    if not isinstance(entries, list) or not entries:
        raise ModelFormatError(f"{home}: model.vocab is not a list of pieces with scores")
    for entry in entries:
        if not isinstance(entry, list) or [type(part) for part in entry] not in ([str, float], [str, int]):
            raise ModelFormatError(f"{home}: a piece is {entry!r:.60}, expected a text and a score")
        yield entry[0], float(entry[1])


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


# -- steps -------------------------------------------------------------------------------------------------------------


@dataclass
class _Steps:
    """The effect of all normalizer and pre-tokenizer steps together."""

    charsmap: bytes = b""
    prefix: bool = False
    squeezes: bool = False
    strips: bool = False
    cuts_words: bool = False
    marks_spaces: bool = False

    def flags(self) -> dict[str, Any]:
        """GGUF metadata of this normalizer; keys without their prefix `tokenizer.ggml.`."""
        flags: dict[str, Any] = {
            "add_space_prefix": self.prefix,
            "remove_extra_whitespaces": self.squeezes or self.cuts_words,
        }
        return flags | ({"precompiled_charsmap": self.charsmap} if self.charsmap else {})


def _read_steps(tokenizer: Mapping[str, Any], home: str) -> _Steps:
    steps = _Steps()
    for step in _flat(tokenizer.get("normalizer"), "normalizers"):
        if not _normalizes(step, steps, home):
            raise _unknown(step, home)
    for step in _flat(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        kind = step.get("type")
        scheme = step.get("prepend_scheme", "always")
        if kind == "Metaspace" and step.get("replacement", SPACE) == SPACE and scheme in ("always", "never"):
            steps.marks_spaces = True
            steps.prefix = scheme == "always" and step.get("add_prefix_space", True)
        elif kind == "WhitespaceSplit" and steps.charsmap:  # which makes spaces of all white space but U+0085
            steps.cuts_words = True
        else:
            raise _unknown(step, home)
    if not steps.marks_spaces:
        raise UnsupportedModelError(f"{home}: no step writes spaces as U+2581, which GGUF takes for granted in Unigram")
    # Strip takes all white space, GGUF spaces only, which the replacements make of it.
    if steps.strips and not (steps.charsmap and (steps.squeezes or steps.cuts_words)):
        raise UnsupportedModelError(
            f"{home}: white space at the end of a text goes, which GGUF has only where all white space becomes spaces "
            "(Precompiled) and runs of spaces are squeezed"
        )
    if steps.squeezes and not (steps.strips or steps.cuts_words):
        logger.info("%s: spaces at the end of a text go too, as GGUF has it where it squeezes them", home)
    return steps


def _flat(step: Any, parts: str) -> Iterator[Mapping[str, Any]]:
    if step is None:
        return
    if step.get("type") == "Sequence":
        for part in step.get(parts) or []:
            yield from _flat(part, parts)
    else:
        yield step


def _normalizes(step: Mapping[str, Any], steps: _Steps, home: str) -> bool:
    """Note what a normalizer does. False when GGUF cannot say it."""
    kind = step.get("type")
    if kind == "Precompiled":
        try:
            steps.charsmap = base64.b64decode(step.get("precompiled_charsmap") or "", validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ModelFormatError(f"{home}: precompiled_charsmap is not base64") from None
    elif kind == "Strip" and not step.get("strip_left"):
        steps.strips |= bool(step.get("strip_right"))
    elif kind == "Prepend" and step.get("prepend") == SPACE:
        steps.prefix = True
    elif kind == "Replace" and step.get("pattern") == {"String": " "} and step.get("content") == SPACE:
        steps.marks_spaces = True
    elif kind == "Replace" and step.get("pattern") == {"Regex": " {2,}"} and step.get("content") in (" ", SPACE):
        steps.squeezes = True
    else:
        return False
    return True


def _unknown(step: Mapping[str, Any], home: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"{home}: {step!s:.200} of a Unigram tokenizer has nothing like it in GGUF")
