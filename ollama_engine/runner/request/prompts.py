"""Prompts: what callers may give as one, or as several, and how many answers they want to it.

One prompt is a text, token ids (a list, tuple or array of whole numbers), or a list or tuple of segments. A list or
tuple of prompts is several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import TypeGuard, cast

import numpy as np

from ollama_engine.errors import ConfigError, EngineError
from ollama_engine.sample import SamplingParams
from ollama_engine.segments import ImageSource, Media, Segment, Text, is_segment
from ollama_engine.tokenizer import Checkpoint, Tokenizer

__all__ = ["AT_ONCE", "SEVERAL", "Images", "Prompt", "Prompts", "about_one", "check_params", "has_media", "is_long",
"is_many", "is_segments", "many", "numbered", "prompt_ids"]  # fmt: skip

Prompt = str | Sequence[int] | Sequence[Segment]
"""Text, token ids that are taken as they are, or segments."""
Prompts = list[str] | tuple[str, ...] | list[list[int]] | tuple[Sequence[int], ...] | list[list[Segment]]

Images = Sequence[ImageSource] | None
"""Images of one prompt."""

AT_ONCE = 4096
"""Most characters that are tokenized on an event loop, which takes less than a millisecond."""

SEVERAL = "several prompts go into a list, to generate or agenerate"
"""Hint for callers who pass several prompts to a method for one."""


def _is_number(prompt: object) -> bool:
    """Whether it is an array of no dimensions, which has no length."""
    return isinstance(prompt, np.ndarray) and not prompt.ndim


def prompt_ids(
    tokenizer: Tokenizer, prompt: Prompt, *, add_special: bool = True, several: str = SEVERAL,
    checkpoint: Checkpoint = None,
) -> list[int]:  # fmt: skip
    """The token ids of a text, or those given. Raises ConfigError for another type, TokenizerError for text beyond it.

    `several`: hint shown when several prompts are passed. An exception of `checkpoint` ends the work.
    """
    if isinstance(prompt, str):
        return tokenizer.encode(prompt, add_special=add_special, checkpoint=checkpoint)
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, (Sequence, np.ndarray)) or _is_number(prompt):
        hint = "; decode it, or give what tokenize makes of it" if isinstance(prompt, (bytes, bytearray)) else ""
        raise ConfigError(f"a prompt is a str or a sequence of token ids, got {type(prompt).__name__}{hint}")
    for number, value in enumerate(prompt):
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
            hint = "messages go to chat" if isinstance(value, Mapping) else several
            raise ConfigError(
                f"a prompt of token ids holds whole numbers only, but [{number}] of this {type(prompt).__name__} is a "
                f"{type(value).__name__}; {hint}"
            )
    return [int(cast(int, value)) for value in prompt]


def is_segments(prompt: object) -> TypeGuard[Sequence[Segment]]:
    """Whether it is one prompt in segments. Raises ConfigError for a list that mixes segments with something else."""
    if not isinstance(prompt, (list, tuple)) or not prompt or isinstance(prompt[0], (int, np.integer)):
        return False
    if not any(map(is_segment, prompt)):
        return False
    other = next((value for value in prompt if not is_segment(value)), None)
    if other is not None:
        raise ConfigError(
            f"a prompt in segments holds Text, Tokens and Media only, got a {type(other).__name__} among them; "
            "wrap texts in Text(...) and token ids in Tokens(...)"
        )
    return True


def has_media(prompt: Prompt | Prompts) -> bool:
    """Whether there are images in a prompt, or in any of several: reading them takes long."""
    if is_many(prompt):
        return any(map(has_media, prompt))
    return isinstance(prompt, (list, tuple)) and Media in map(type, prompt)


def is_long(prompts: Sequence[Prompt]) -> bool:
    """Whether texts and token ids are too long to be read on an event loop."""
    return len(prompts) > AT_ONCE >> 6 or sum(map(_length, prompts)) > AT_ONCE


def _length(prompt: object) -> int:
    """Characters or tokens of a prompt, approximately; 0 for anything else."""
    if isinstance(prompt, (list, tuple)) and prompt and is_segment(prompt[0]):
        return sum(len(part.text) if isinstance(part, Text) and isinstance(part.text, str) else 1 for part in prompt)
    return len(prompt) if isinstance(prompt, Sized) and not _is_number(prompt) else 0


def is_many(prompt: Prompt | Prompts) -> TypeGuard[Sequence[Prompt]]:
    """Whether it is a list or tuple of prompts; one of whole numbers is one prompt."""
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], (str, Sequence, np.ndarray))


def many(prompt: Prompt | Prompts) -> Sequence[Prompt]:
    """A list of prompts, of one where it is one."""
    return prompt if is_many(prompt) else [cast(Prompt, prompt)]


@contextlib.contextmanager
def about_one(name: str | None, number: int) -> Iterator[None]:
    """Errors about one of several texts say which, where the caller gave several and calls them `name`."""
    try:
        yield
    except EngineError as error:
        raise (error if name is None else numbered(error, name, number)) from None


def numbered(error: EngineError, name: str, number: int) -> EngineError:
    """The same error, about text `number` of a list that the caller calls `name`."""
    told = error.behind(f"{name}[{number}]: ")
    told.text_number = number
    return told


def check_params(params: object, hint: str = "") -> None:
    """Raise ConfigError for what are no SamplingParams, such as a text where none is taken."""
    if not isinstance(params, SamplingParams):
        advice = ["write SamplingParams(**params)"] if isinstance(params, Mapping) else []
        raise ConfigError(
            f"params are SamplingParams, got {type(params).__name__}: {params!r:.40}{hint}", advice=advice
        )
