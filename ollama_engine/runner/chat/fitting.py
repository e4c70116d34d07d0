"""Conversations that are longer than the context: how many of the oldest turns are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ollama_engine.chat.template import MessageTemplate
from ollama_engine.errors import ChatError, ContextOverflowError
from ollama_engine.runner.chat.conversation import Conversation
from ollama_engine.runner.core.input_processor import prompt_inputs
from ollama_engine.runner.core.text_room import TextRoom
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.segments import Media, Segment, Tokens
from ollama_engine.tokenizer import Checkpoint

__all__ = ["RenderedChat", "certainly_dropped", "fewest_dropped", "fitted"]


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The text of a conversation, as its template wrote it."""

    segments: list[Segment]
    template: MessageTemplate
    tail: str
    """The end of its text."""
    context: Sequence[int]
    """Token ids that stand before it."""
    dropped_messages: int = 0
    inputs: Inputs | None = None
    """Those of `prompt`, where they were read to count them."""

    @property
    def prompt(self) -> list[Segment]:
        """Its segments behind the context."""
        return [Tokens(self.context), *self.segments] if len(self.context) else self.segments


def certainly_dropped(given: Conversation, turns: Sequence[Sequence[int]], loaded: Loaded) -> int:
    """How many of the oldest turns go at least: so much a user's texts tell before anything is rendered."""
    longest = loaded.tokenizer.longest_token
    return 0 if longest is None else given.certainly_dropped(turns, TextRoom(loaded.num_ctx).most(longest))


def fitted(
    rendered: Callable[[int], RenderedChat], n_turns: int, loaded: Loaded, checkpoint: Checkpoint, *, least: int = 0
) -> RenderedChat:
    """The conversation with as many messages as num_ctx has room for, and for one token of an answer.

    `rendered(n)` renders it without the n oldest of `n_turns` turns; fewer than `least` are not tried. With none of
    those left it may still be too long.
    A set of messages that the template refuses does not fit. Images count for nothing here.
    """
    kept: dict[int, RenderedChat] = {}

    def fits(n_dropped: int) -> bool:
        if checkpoint is not None:
            checkpoint()
        try:
            chat = rendered(n_dropped)
            chat, n_tokens = _counted(chat, loaded, checkpoint)
        except ChatError:
            return False
        except ContextOverflowError:  # without counting
            n_tokens = loaded.num_ctx + 1
        has_room = n_tokens < loaded.num_ctx
        if has_room or n_dropped == n_turns:
            kept[n_dropped] = chat
        return has_room

    n_dropped = fewest_dropped(n_turns, loaded.num_ctx, fits, least)
    return kept.get(n_dropped) or rendered(n_dropped)


def fewest_dropped(n_turns: int, num_ctx: int, fits: Callable[[int], bool], least: int = 0) -> int:
    """How many turns have to go at least, found by bisection; all of them where even that is not enough.

    No number below `least` is tried, none is tried twice, and not all turns where there are some: then that number is
    the only one left.
    """
    # num_ctx turns do not fit, since each has a token or more, and counting them would take long.
    least = max(least, n_turns - num_ctx + 1)
    if least <= 0 and fits(0):
        return 0
    too_few, enough = max(0, least - 1), n_turns
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if fits(middle) else (middle, enough)
    return enough


def _counted(chat: RenderedChat, loaded: Loaded, checkpoint: Checkpoint) -> tuple[RenderedChat, int]:
    """(the conversation, with its inputs where it has no images; the number of its tokens)."""
    prompt, room = chat.prompt, TextRoom(loaded.num_ctx)
    texts = [segment for segment in prompt if not isinstance(segment, Media)]
    if len(texts) < len(prompt):
        return chat, len(prompt_inputs(loaded, texts, checkpoint=checkpoint, room=room)) if texts else 0
    inputs = prompt_inputs(loaded, prompt, checkpoint=checkpoint, room=room)
    return replace(chat, inputs=inputs), len(inputs)
