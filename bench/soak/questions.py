"""Questions of a soak's clients. The answers are known, because each was asked alone before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from PIL.Image import Image
from PIL.Image import new as new_image

from ollama_engine import Engine, SamplingParams

PROMPTS = (
    "Once upon a time", "One day, a fox", "The girl had a red ball. She", "Tom and his dog went to the park.",
    "It was a dark night", "\"I am sad,\" said the bird.", "A", "There was a little house in the wood. " * 6,
)  # fmt: skip
FORMATS: tuple[Mapping[str, Any] | None, ...] = (
    None,
    {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}, "ok": {"type": "boolean"}},
        "required": ["n", "ok"],
        "additionalProperties": False,
    },
)
COLOURS = ("red", "blue", "green")


@dataclass(frozen=True)
class Question:
    """A prompt with parameters that give one answer only: greedy ones, or with a seed."""

    engine: Engine
    prompt: Any
    params: SamplingParams
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "text"

    @cached_property
    def alone(self) -> tuple[tuple[int, ...], str]:
        """Tokens and text. The first to ask must be alone."""
        found = self.engine.generate(self.prompt, self.params, cache=False, **self.options)
        return found.tokens, found.text


@dataclass(frozen=True)
class Conversation:
    """Messages of a chat."""

    engine: Engine
    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams

    @cached_property
    def alone(self) -> str:
        return str(self.engine.chat(self.messages, self.params, cache=False).message.content)


@dataclass(frozen=True)
class Script:
    """Texts that a session appends and asks, in turns."""

    engine: Engine
    texts: Sequence[str]
    params: SamplingParams

    @cached_property
    def alone(self) -> tuple[str, ...]:
        with self.engine.session() as session:
            return tuple(self.turn(session, text) for text in self.texts)

    def turn(self, session: Any, text: str) -> str:
        session.append(text)
        return str(session.generate(self.params).text)


def params() -> Iterator[SamplingParams]:
    yield SamplingParams(temperature=0, max_tokens=24)
    yield SamplingParams(temperature=0.9, top_k=50, seed=7, max_tokens=32)
    yield SamplingParams(temperature=1.3, top_k=0, top_p=0.95, min_p=0.02, repeat_penalty=1.1, seed=11, max_tokens=16)


def questions(text: Engine, vision: Engine) -> list[Question]:
    made = [
        Question(text, prompt, chosen, {"format": form} if form else {}, "format" if form else "text")
        for prompt, chosen, form in itertools.product(PROMPTS, params(), FORMATS)
    ]
    for colour, chosen in itertools.product(COLOURS, params()):
        made.append(Question(vision, "What is this?", chosen, {"images": [picture(colour)]}, "image"))
    return made


def picture(colour: str) -> Image:
    image = new_image("RGB", (64, 48), "white")
    image.paste(colour, (12, 8, 40, 40))
    return image


def conversations(vision: Engine) -> list[Conversation]:
    said = [[{"role": "user", "content": "Hello"}]]
    for colour in COLOURS:
        parts = [{"type": "image", "image": picture(colour)}, {"type": "text", "text": "What do you see?"}]
        said.append([{"role": "user", "content": parts}])
    return [Conversation(vision, messages, chosen) for messages in said for chosen in params()]


def scripts(text: Engine) -> list[Script]:
    turns = ("Once there was a cat.", " The cat met a dog.", " They ran")
    return [Script(text, turns[i:], chosen) for chosen in params() for i in range(2)]
