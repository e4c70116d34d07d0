"""Positions with several axes (M-RoPE, Wang et al. 2024): how many pairs of a head turn by each, from metadata."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.options import OptionsT

__all__ = ["read_sections", "with_sections"]


def read_sections(metadata: Metadata, key: str, pairs: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """How many pairs turn by each axis; `default` in files that do not say.

    llama.cpp's converter writes a fourth axis, which no pair turns by. Raises ModelFormatError for numbers that do not
    add up to `pairs`.
    """
    sections = metadata.list(key, list(default))
    if not 3 <= len(sections) <= 4 or not all(type(n) is int and n >= 0 for n in sections) or sum(sections) != pairs:
        raise ModelFormatError(
            f"{metadata.key(key)} is {sections}; expected 3 or 4 numbers of pairs that add up to {pairs}, half "
            "the size of a head"
        )
    return tuple(sections)


def with_sections(o: OptionsT, sections: tuple[int, ...], *, interleaved: bool = False) -> OptionsT:
    """The same options, whose every layer turns by as many axes."""
    rope = nn.SectionedRope(
        **{f.name: getattr(o.rope, f.name) for f in fields(o.rope)}, sections=sections, interleaved=interleaved
    )
    return replace(o, rope=rope, ropes=(rope,) * o.n_layer)
