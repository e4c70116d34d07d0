"""The seam: where a prompt ends and a continuation begins, in tokens.

Of two texts, the tokens are those of the joined text, cut behind the prompt's, and white space at the end of the prompt
goes to the continuation: a vocabulary has " yes" as one token. This is what lm-evaluation-harness does, so scores
compare. Where a token of the joined text lies across the seam ("The c" + "at"), it cannot be cut so. Then prompt and
continuation are tokenized apart, and the text that is scored is still the joined one.

Where a continuation is given in token ids, the prompt is taken as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

from ollama_engine.errors import ConfigError
from ollama_engine.runner.core.input_processor import prompt_inputs
from ollama_engine.runner.core.text_room import TextRoom
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.prompts import Prompt, about_one, is_segments, prompt_ids
from ollama_engine.segments import Segment, Text
from ollama_engine.tokenizer import Checkpoint, Tokenizer

__all__ = ["Continuation", "Pair", "tokenize_pair"]

Continuation = str | Sequence[int]
"""A text, or token ids that are taken as they are."""

ONE_PROMPT = "score takes one prompt at a time"


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt's inputs, and the tokens of each of its continuations."""

    inputs: Inputs
    continuations: list[tuple[int, ...]]


def tokenize_pair(
    loaded: Loaded, prompt: Prompt, continuations: Sequence[Continuation], name: str | None,
    checkpoint: Checkpoint = None,
) -> Pair:  # fmt: skip
    """Inputs and tokens. `name`: what the caller calls the list of continuations, None where one was given.

    An exception of `checkpoint` ends the work. Raises ConfigError for a prompt or a continuation without tokens, and
    other errors as `prompt_inputs` does.
    """
    are_texts = [isinstance(continuation, str) for continuation in continuations]
    head, moved = _without_space(prompt) if all(are_texts) else (prompt, "")
    inputs = _without_end(loaded, head, checkpoint)
    if not len(inputs):
        raise ConfigError(
            "the prompt is empty, and this model puts no token before a text: nothing says how probable the first "
            "token is; give a prompt"
        )
    tokenized: list[tuple[int, ...]] = []
    for number, continuation in enumerate(continuations):
        with about_one(name, number):
            tokenized.append(tuple(_tokens(loaded, head, inputs, moved, continuation, checkpoint)))
    return Pair(inputs, tokenized)


def _without_space(prompt: Prompt) -> tuple[Prompt, str]:
    """A prompt, and the white space at the end of its text."""
    if isinstance(prompt, str):
        head = prompt.rstrip()
        return head, prompt[len(head) :]
    last = prompt[-1] if is_segments(prompt) else None
    if not isinstance(last, Text):
        return prompt, ""
    text = last.text.rstrip()
    segments = [*cast("Sequence[Segment]", prompt)[:-1], replace(last, text=text)]
    return segments, last.text[len(text) :]


def _tokens(
    loaded: Loaded, head: Prompt, inputs: Inputs, moved: str, continuation: Continuation, checkpoint: Checkpoint
) -> list[int]:
    if not isinstance(continuation, str):
        return _not_empty(_ids(loaded, continuation))
    TextRoom(loaded.num_ctx).check(loaded.tokenizer, len(moved) + len(continuation), "a continuation")
    if isinstance(head, str):
        given = _behind(loaded.tokenizer, head, inputs, moved + continuation, checkpoint)
    else:
        text = moved + continuation
        given = loaded.tokenizer.encode(text, add_special=False, continues=True, checkpoint=checkpoint)
    return _not_empty(given)


def _not_empty(given: list[int]) -> list[int]:
    if not given:
        raise ConfigError("a continuation has at least one token, got an empty one")
    return given


def _ids(loaded: Loaded, continuation: Sequence[int]) -> list[int]:
    ids = prompt_ids(loaded.tokenizer, continuation, several="a list of continuations holds texts and lists of ids")
    checked: list[int] = prompt_inputs(loaded, ids).tokens.tolist()
    return checked


def _behind(tokenizer: Tokenizer, head: str, inputs: Inputs, text: str, checkpoint: Checkpoint) -> list[int]:
    """The tokens of `text` behind those of `head`."""
    whole = _without_eos(tokenizer, tokenizer.encode(head + text, checkpoint=checkpoint))
    before = inputs.tokens.tolist()
    if whole[: len(before)] == before:
        return whole[len(before) :]
    return tokenizer.encode(text, add_special=False, continues=True, checkpoint=checkpoint)


def _without_end(loaded: Loaded, prompt: Prompt, checkpoint: Checkpoint) -> Inputs:
    """The inputs of a prompt, without the EOS that some vocabularies put behind a text."""
    inputs = prompt_inputs(loaded, prompt, several=ONE_PROMPT, checkpoint=checkpoint, room=TextRoom(loaded.num_ctx))
    ends_in_text = isinstance(prompt, str) or (len(prompt) > 0 and isinstance(cast(object, prompt[-1]), Text))
    if ends_in_text and loaded.tokenizer.add_eos and loaded.tokenizer.eos_id is not None:
        return inputs.part(0, len(inputs) - 1)
    return inputs


def _without_eos(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    return ids[:-1] if tokenizer.add_eos and tokenizer.eos_id is not None else ids
