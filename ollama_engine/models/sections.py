"""Positions with several axes (M-RoPE, Wang et al. 2024): how many pairs of a head turn by each, from metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.options import OptionsT

__all__ = ["read_sections", "read_turns", "with_sections"]


def read_sections(metadata: Metadata, key: str, pairs: int) -> tuple[int, ...]:
    """How many pairs turn by each axis.

    llama.cpp's converter writes a fourth axis, which no pair turns by. Raises ModelFormatError for numbers that do not
    add up to `pairs`.
    """
    sections = metadata.list(key, [])
    if not _are_counts(sections) or sum(sections) != pairs:
        raise ModelFormatError(
            f"{metadata.key(key)} is {sections}; expected 3 or 4 numbers of pairs that add up to {pairs}, half "
            "the size of a head"
        )
    return tuple(sections)


def read_turns(metadata: Metadata, key: str, pairs: int, default: Sequence[int]) -> tuple[int, ...]:
    """The same where axes take turns; `default` in files that do not say.

    Height takes every third pair from the second on, width from the third on, as many as the file says and as there
    are; time takes all others, as in transformers. Raises ModelFormatError.
    """
    sections = metadata.list(key, list(default))
    if not _are_counts(sections):
        raise ModelFormatError(f"{metadata.key(key)} is {sections}; expected 3 or 4 numbers of pairs")
    height, width = (len(range(axis, min(3 * sections[axis], pairs), 3)) for axis in (1, 2))
    return pairs - height - width, height, width


def _are_counts(sections: Sequence[object]) -> bool:
    return 3 <= len(sections) <= 4 and all(type(n) is int and n >= 0 for n in sections)


def with_sections(o: OptionsT, sections: tuple[int, ...], *, interleaved: bool = False) -> OptionsT:
    """The same options, whose every layer turns by as many axes."""
    rope = nn.SectionedRope(
        **{f.name: getattr(o.rope, f.name) for f in fields(o.rope)}, sections=sections, interleaved=interleaved
    )
    return replace(o, rope=rope, ropes=(rope,) * o.n_layer)
