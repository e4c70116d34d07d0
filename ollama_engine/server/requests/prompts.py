"""From a request to a prompt: conversations that fit into the context, prompts with a suffix, token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.segments import Media, Segment, Text, Tokens
from ollama_engine.server.errors import TOO_LONG, ApiError
from ollama_engine.store.showing import short_facts

if TYPE_CHECKING:
    from ollama_engine.server.served import ServedModel
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["Message", "fill_in", "fitting", "rendered", "segment_ids"]

Message = dict[str, Any]
"""In the engine's form."""

OF_A_MESSAGE = 64
"""Tokens that a template adds to a message, at most, as a rule."""
INFILL = (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle"))
"""Names of the tokens for what is filled in, in GGUF files and in older ones."""


# -- the length of a prompt --------------------------------------------------------------------------------------------


async def fitting(model: ServedModel, messages: list[Message], *, cut: bool, **options: Any) -> list[Message]:
    """The messages without the oldest ones that the context has no room for; system messages and the last one stay.

    Raises ApiError where nothing may be `cut` and it is too long. Images count for nothing: the engine refuses what
    does not fit. `options` are those of the template.
    """
    num_ctx = model.facts.num_ctx
    if most_tokens(messages, options) < num_ctx:
        return messages
    droppable = [number for number, message in enumerate(messages[:-1]) if message["role"] != "system"]

    async def fits(n_dropped: int) -> bool:
        kept = without(messages, droppable[:n_dropped])
        return len(await segment_ids(model, await rendered(model, kept, **options))) < num_ctx

    # No message is shorter than a token, so this many have to go at least; a count of all of them would take long.
    low = max(0, len(droppable) - num_ctx)
    if low == 0 and await fits(0):
        return messages
    if not cut:
        raise ApiError(400, TOO_LONG)
    high = len(droppable)  # low does not fit; high may not either, and then the engine cuts the text
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if await fits(middle) else (middle, high)
    return without(messages, droppable[:high])


def most_tokens(messages: Sequence[Message], options: Mapping[str, Any]) -> int:
    """At least as many tokens as a prompt has, as a rule: no token is shorter than a byte."""
    tools = len(repr(options.get("tools") or "").encode("utf-8", "replace"))
    return tools + sum(
        OF_A_MESSAGE
        + len(message["content"].encode("utf-8", "replace"))
        + len(message.get("thinking") or "")
        + len(repr(message.get("tool_calls") or ""))
        for message in messages
    )


def without(messages: Sequence[Message], numbers: Sequence[int]) -> list[Message]:
    dropped = set(numbers)
    return [message for number, message in enumerate(messages) if number not in dropped]


# -- what the template makes of it -------------------------------------------------------------------------------------


async def rendered(model: ServedModel, messages: Sequence[Message], **options: Any) -> list[Segment]:
    """The prompt of a conversation. Raises as `Engine.apply_template`."""
    return await model.apply_template(messages, **options)


async def segment_ids(model: ServedModel, segments: Sequence[Segment], context: Sequence[int] = ()) -> list[int]:
    """The token ids of a prompt behind those of `context`, without its images."""
    head: list[Segment] = [Tokens(list(context))] if context else []
    return await model.tokenize([*head, *(part for part in segments if not isinstance(part, Media))])


def fill_in(name: str, stored: StoredModel, prompt: str, suffix: str, template: GoTemplate | None) -> list[Segment]:
    """The prompt that asks for what stands between two texts. Raises ApiError for a model that cannot do that."""
    if template is not None and template.reads("Suffix"):
        return [Text(template.fill_in(prompt, suffix), parse_special=True)]
    facts = short_facts(stored)
    metadata = {} if facts is None else facts.metadata
    ids = [
        next((metadata[key] for name in names if (key := f"tokenizer.ggml.{name}_token_id") in metadata), None)
        for names in INFILL
    ]
    if None in ids:
        raise ApiError(400, f'"{name}" does not support insert')
    pre, suf, mid = (Tokens([int(token)]) for token in ids if token is not None)
    return [pre, Text(prompt), suf, Text(suffix), mid]
