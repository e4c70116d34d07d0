"""Prompts: what callers may give as one, or as several, and how many answers they want to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard, cast

import numpy as np

from ollama_engine.errors import ConfigError
from ollama_engine.runner.terms import whole
from ollama_engine.sample import SamplingParams
from ollama_engine.tokenizer import Tokenizer

__all__ = ["Prompt", "Prompts", "is_many", "many", "prompt_ids", "several"]

Prompt = str | Sequence[int]
"""Text, or token ids that are taken as they are."""
Prompts = list[str] | list[list[int]]

_SEEDS = 1 << 64


def prompt_ids(tokenizer: Tokenizer, prompt: Prompt, *, add_special: bool = True) -> list[int]:
    """The token ids of a prompt. Raises ConfigError for one of another type, TokenizerError for text beyond it."""
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special=add_special)
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, (Sequence, np.ndarray)):
        hint = "; decode it, or give what tokenize makes of it" if isinstance(prompt, (bytes, bytearray)) else ""
        raise ConfigError(f"a prompt is a str or a sequence of token ids, got {type(prompt).__name__}{hint}")
    return [_token_id(t, prompt) for t in prompt]


def _token_id(value: object, prompt: object) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ConfigError(
            f"a prompt of token ids holds whole numbers only, got a {type(value).__name__} in a "
            f"{type(prompt).__name__}; several prompts go into a list, to generate or agenerate"
        )
    return int(value)


def is_many(prompt: Prompt | Prompts) -> TypeGuard[list[Prompt]]:
    """Whether it is a list of prompts; a list of whole numbers is one."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, Sequence, np.ndarray))


def many(prompt: Prompt | Prompts) -> list[Prompt]:
    """A list of prompts, of one where it is one."""
    return prompt if is_many(prompt) else [cast(Prompt, prompt)]


def several(params: SamplingParams, n: int | None) -> Iterator[SamplingParams]:
    """Parameters for each of `n` answers to one prompt: those given, with a seed of its own where one was given.

    The seed of answer i is `seed + i` (modulo 2^64). Raises ConfigError for n below 1.
    """
    n = 1 if n is None else whole("n", n, 1, 1 << 16)
    for i in range(n):
        yield params if params.seed is None else replace(params, seed=(params.seed + i) % _SEEDS)
